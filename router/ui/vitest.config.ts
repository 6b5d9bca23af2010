import { defineConfig } from "vitest/config";

export default defineConfig({
  // Solid's build for browsers is used. Effects do not run in its build for servers, which Node would load.
  resolve: { conditions: ["browser"] },
  ssr: { resolve: { conditions: ["browser"] } },
  test: {
    include: ["test/**/*.test.ts"],
    environment: "node",
    server: { deps: { inline: ["solid-js"] } },
    // The timeout only ends a test that hangs: no unit test measures time, and a busy machine is slow.
    testTimeout: 60_000,
  },
});
