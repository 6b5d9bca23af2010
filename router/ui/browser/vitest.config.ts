// Browser tests. Build the web UI first (`npm run build`), then run `npm run test:browser` with these variables:
//
// - VARVE_URL           a running varve; without it, most tests use the fake server in `fixture/`
// - VARVE_HOT_FUNCTION  (part of) the name of a function that VARVE_URL's agent sees using most of a CPU
// - VARVE_LARGE_PROFILE path of `large_cpp.cpu`
// - VARVE_EMPTY_URL     a varve without profiles; a test pushes the first one
// - VARVE_KILL_CMD      shell command that kills the varve at VARVE_URL
// - VARVE_START_CMD     shell command that starts it again with the same data and port, and returns
// - VARVE_CLUSTER_DIR   folder of a cluster that `deploy/local/cluster` has started without an agent, and without data
// - VARVE_CLUSTER_KILL_CMD   shell command that kills one more node of it
// - VARVE_CLUSTER_START_CMD  shell command that starts the killed nodes again
// - VARVE_CHROMIUM      another browser than /usr/bin/chromium
// - VARVE_SCREENSHOTS   folder for screenshots of the views and other states in both themes
//
// A test whose variables are missing is skipped and prints nothing.
// Each test that passes prints `varve-tests: browser test ran: NAME`.

import { defineConfig } from "vitest/config";

// Tests run one at a time: some measure frames, and one kills the server.
export default defineConfig({
  test: {
    root: import.meta.dirname,
    include: ["**/*.test.ts"],
    environment: "node",
    fileParallelism: false,
    testTimeout: 120_000,
    hookTimeout: 60_000,
    // The default of one second is too short for a busy machine.
    expect: { poll: { timeout: 15_000 } },
    // `make test` counts lines on stdout, so nothing may decorate these lines.
    disableConsoleIntercept: true,
  },
});
