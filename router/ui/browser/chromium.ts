// Chromium for the tests, and what every one of them watches.

import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";

const EXECUTABLE = process.env.VARVE_CHROMIUM ?? "/usr/bin/chromium";
const ARGUMENTS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

let browser: Browser | undefined;

/** Starts one browser for the tests of a file. */
export function withBrowser(): void {
  beforeAll(async () => {
    browser = await chromium.launch({ executablePath: EXECUTABLE, args: ARGUMENTS });
  });
  afterAll(async () => {
    await browser?.close();
  });
}

export interface Visit {
  readonly page: Page;
  readonly context: BrowserContext;
  /** Errors of scripts and of the content policy; a test ends with none. */
  readonly faults: string[];
}

export interface VisitOptions {
  readonly width?: number;
  readonly height?: number;
  readonly scale?: number;
  readonly theme?: "light" | "dark";
}

/** A new tab, as of somebody who has never been here. */
export async function visit({
  width = 1280,
  height = 800,
  scale = 1,
  theme = "light",
}: VisitOptions = {}): Promise<Visit> {
  if (browser === undefined) throw new Error("withBrowser() has not run");
  const context = await browser.newContext({
    viewport: { width, height },
    deviceScaleFactor: scale,
    colorScheme: theme,
  });
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const page = await context.newPage();
  const faults: string[] = [];
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("console", (message) => {
    const text = message.text();
    // A server that is down or refuses on purpose is logged by the browser itself.
    if (message.type() === "error" && !text.startsWith("Failed to load resource")) faults.push(text);
  });
  return { page, context, faults };
}

/** A browser test: prints the line that `make test` counts, if it passed. */
export function browserTest(name: string, options: VisitOptions, act: (visit: Visit) => Promise<void>): void {
  test(name, async () => {
    const opened = await visit(options);
    try {
      await act(opened);
      expect(opened.faults).toEqual([]);
    } finally {
      await opened.context.close();
    }
    console.log(`varve-tests: browser test ran: ${name}`);
  });
}

/** Waits until the flame graph or the table shows an answer. */
export async function viewsAreShown(page: Page): Promise<void> {
  await page.locator(".picture").waitFor();
  await page.waitForFunction(
    () =>
      performance.getEntriesByName("varve:flame-first-draw").length > 0 ||
      document.querySelector(".view-table") !== null,
  );
}

/** Milliseconds of each measure of a name that the page has taken. */
export function measures(page: Page, name: string): Promise<number[]> {
  return page.evaluate((wanted) => performance.getEntriesByName(wanted).map((entry) => entry.duration), name);
}
