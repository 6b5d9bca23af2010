import solid from "vite-plugin-solid";
import { defineConfig } from "vite";
import { scriptBudget } from "./script_budget.ts";

export default defineConfig({
  // Addresses are relative, so that the web UI also works behind a proxy that adds a prefix to the path.
  base: "./",
  plugins: [solid(), scriptBudget()],
  build: {
    target: "es2022",
    outDir: "dist",
    emptyOutDir: true,
    // No file is inlined: the server's policy is `default-src 'self'`, which refuses data: addresses.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
});
