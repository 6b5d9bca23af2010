import solid from "vite-plugin-solid";
import { defineConfig } from "vite";
import { scriptBudget } from "./script_budget.ts";

export default defineConfig({
  // Relative addresses, so that the web UI works through a proxy that adds a path.
  base: "./",
  plugins: [solid(), scriptBudget()],
  build: {
    target: "es2022",
    outDir: "dist",
    emptyOutDir: true,
    // Nothing inline: the server's policy is `default-src 'self'`, which refuses data: addresses.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
});
