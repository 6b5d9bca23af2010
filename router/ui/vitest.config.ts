import { defineConfig } from "vitest/config";

export default defineConfig({
  // The timeout only ends a hanging test: no unit test measures time, and a busy machine is slow.
  test: { include: ["test/**/*.test.ts"], environment: "node", testTimeout: 60_000 },
});
