// Browser tests. Build the page first (`npm run build`); then `npm run test:browser` with, from the harness:
//
// VARVE_URL           a running varve; without it the stacks of most tests come from `fixture/`
// VARVE_HOT_FUNCTION  a function that its agent sees using most of a CPU, by (part of) its name
// VARVE_LARGE_PROFILE path of `large_cpp.cpu`
// VARVE_EMPTY_URL     a varve without profiles; a test pushes the first one
// VARVE_KILL_CMD      shell command that kills the varve at VARVE_URL
// VARVE_START_CMD     shell command that starts it again on the same data and port, and returns
// VARVE_CHROMIUM      another browser than /usr/bin/chromium
// VARVE_SCREENSHOTS   folder for pictures of the page and its states in both themes
//
// A test whose variables are missing is skipped and prints nothing; each that passes prints
// `varve-tests: browser test ran: NAME`.

import { defineConfig } from "vitest/config";

// One browser test at a time: they measure frames and one of them kills the server.
export default defineConfig({
  test: {
    root: import.meta.dirname,
    include: ["**/*.test.ts"],
    environment: "node",
    fileParallelism: false,
    testTimeout: 120_000,
    hookTimeout: 60_000,
    // Lines on stdout are counted by `make test`, so nothing may decorate them.
    disableConsoleIntercept: true,
  },
});
