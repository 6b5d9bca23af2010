// Fails the build when the compressed scripts of the web UI exceed their budget.
//
// The budget keeps the web UI fast to load over a slow connection.

import { gzipSync } from "node:zlib";
import type { Plugin } from "vite";

/** Largest size of all scripts together, gzipped, in bytes. */
export const SCRIPT_GZIP_BYTES_MAX = 150 * 1024;

/** Plugin that prints the compressed size of all scripts, and throws an error above the budget. */
export function scriptBudget(): Plugin {
  return {
    name: "script-budget",
    apply: "build",
    generateBundle(_options, bundle) {
      let sum_bytes = 0;
      for (const output of Object.values(bundle)) {
        if (output.type === "chunk") sum_bytes += gzipSync(output.code).length;
      }
      const line = `scripts: ${sum_bytes} bytes gzipped, budget ${SCRIPT_GZIP_BYTES_MAX}`;
      if (sum_bytes > SCRIPT_GZIP_BYTES_MAX) this.error(`${line}: remove ${sum_bytes - SCRIPT_GZIP_BYTES_MAX} bytes`);
      console.log(line);
    },
  };
}
