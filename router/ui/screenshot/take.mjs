// Takes the screenshot of the README: `node take.mjs URL FILE`.
//
// Opens the web UI at URL in Chromium, waits until all names have arrived, and writes FILE as PNG.
// `scripts/screenshot` starts the server and the load.

import { statSync } from "node:fs";
import { argv, env } from "node:process";
import { chromium } from "playwright-core";

/**
 * Services in `load/`. Only these are shown: other processes of the host, such as builds, would fill the flame graph.
 */
const SERVICES = "api|media|search|stats";
/** Largest size of the file, in bytes. It is small, because every clone of the repository contains the file. */
const BYTES_MAX = 300_000;
/** Longest wait for the names of all files, in milliseconds. */
const NAMES_MS_MAX = 120_000;

const [url, file] = argv.slice(2);
const browser = await chromium.launch({
  executablePath: env.VARVE_CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu"],
});
try {
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 }, colorScheme: "light" });
  const query = encodeURIComponent(`{service_name=~"${SERVICES}"}`);
  await page.goto(`${url}/?query=${query}&from=now-5m`);
  await page.waitForFunction(() => performance.getEntriesByName("varve:flame-first-draw").length > 0);
  await page.waitForFunction(() => document.querySelector(".notice") === null, undefined, { timeout: NAMES_MS_MAX });
  // The table, the timeline and the legend appear after the flame graph.
  await page.locator(".grid-row").first().waitFor();
  await page.locator(".areas li").nth(3).waitFor();
  await page.waitForTimeout(1_000);
  await page.screenshot({ path: file });
} finally {
  await browser.close();
}
const size = statSync(file).size;
if (size > BYTES_MAX) throw new Error(`${file} has ${size} bytes, and the limit is ${BYTES_MAX}`);
console.log(`${file}: ${size} bytes`);
