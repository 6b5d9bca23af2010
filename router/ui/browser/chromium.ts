// Chromium for the tests, and the errors that every test watches for.

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
  /** Errors of scripts and of the content policy; a test must end with none. */
  readonly errors: string[];
}

export interface VisitOptions {
  readonly width?: number;
  readonly height?: number;
  readonly scale?: number;
  readonly theme?: "light" | "dark";
  /** Time limit of the test, in milliseconds. */
  readonly timeout_ms?: number;
}

/** Opens a new tab without any stored state. */
export async function visit(options: VisitOptions = {}): Promise<Visit> {
  const { width = 1280, height = 800, scale = 1, theme = "light" } = options;
  if (browser === undefined) throw new Error("withBrowser() has not run");
  const context = await browser.newContext({
    viewport: { width, height },
    deviceScaleFactor: scale,
    colorScheme: theme,
  });
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const page = await context.newPage();
  const errors: string[] = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => {
    const text = message.text();
    // The browser logs refused and failed requests itself, and some tests provoke them.
    if (message.type() === "error" && !text.startsWith("Failed to load resource")) errors.push(text);
  });
  return { page, context, errors };
}

/** A browser test; if it passes, it prints the line that `make test` counts. */
export function browserTest(name: string, options: VisitOptions, act: (visit: Visit) => Promise<void>): void {
  test(name, { timeout: options.timeout_ms }, async () => {
    const opened = await visit(options);
    try {
      await act(opened);
      expect(opened.errors).toEqual([]);
    } finally {
      await opened.context.close();
    }
    console.log(`varve-tests: browser test ran: ${name}`);
  });
}

/** Waits until the flame graph or the table shows a response. */
export async function viewsAreShown(page: Page): Promise<void> {
  await page.locator(".views").waitFor();
  await page.waitForFunction(() => {
    const draws = performance.getEntriesByName("varve:flame-first-draw");
    return draws.length > 0 || document.querySelector(".view-table") !== null;
  });
}

/** Durations of the web UI's performance measures with this name, in milliseconds. */
export function measures(page: Page, name: string): Promise<number[]> {
  return page.evaluate((measure) => performance.getEntriesByName(measure).map((entry) => entry.duration), name);
}

/** Presses Run. */
export function run(page: Page): Promise<void> {
  return page.getByRole("button", { name: "Run", exact: true }).click();
}
