// Large pictures, measured by the page's own marks.

import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import type { Page } from "playwright-core";
import { nextResponse, readResponse } from "./api_response";
import { browserTest, measures, viewsAreShown, withBrowser } from "./chromium";
import { startFixture } from "./fixture/server";
import { manyStacks } from "./fixture/stacks";
import { push, stored, VARVE_URL } from "./store";

withBrowser();

/** From the answer's last byte to its picture, in milliseconds. */
const FIRST_DRAW_MS_MAX = 100;
/** One frame at 60 a second. */
const FRAME_MS_MAX = 1000 / 60;

function middleOf(values: readonly number[], share = 0.5): number {
  return [...values].sort((a, b) => a - b)[Math.min(Math.floor(values.length * share), values.length - 1)];
}

/** Loads the picture five times, hovers and zooms, and prints what it took. */
async function measurePicture(page: Page, name: string): Promise<void> {
  for (let i = 0; i < 4; i++) {
    const before = (await measures(page, "varve:flame-first-draw")).length;
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.waitForFunction(
      (count) => performance.getEntriesByName("varve:flame-first-draw").length > count,
      before,
    );
  }
  const box = await page.locator(".flame-scroller").boundingBox();
  if (box === null) throw new Error("no flame graph");
  for (let i = 0; i < 150; i++) {
    await page.mouse.move(box.x + ((i * 37) % box.width), box.y + 10 + ((i * 13) % Math.min(box.height - 20, 200)));
  }
  const drawsBefore = (await measures(page, "varve:flame-draw")).length;
  for (const x of [0.01, 0.3, 0.05]) {
    await page.mouse.click(box.x + box.width * x, box.y + 30);
    await page.waitForTimeout(350);
    await page.locator(".breadcrumb button").first().click();
    await page.waitForTimeout(350);
  }
  const firstDraws = await measures(page, "varve:flame-first-draw");
  const hovers = await measures(page, "varve:flame-hover");
  const zooms = (await measures(page, "varve:flame-draw")).slice(drawsBefore);
  const figures = {
    suite: "browser",
    picture: name,
    parse_ms_p50: middleOf(await measures(page, "varve:response-parse")),
    first_draw_ms_min: Math.min(...firstDraws),
    first_draw_ms_p50: middleOf(firstDraws),
    first_draw_ms_max: Math.max(...firstDraws),
    hover_ms_p95: middleOf(hovers, 0.95),
    zoom_frame_ms_p95: middleOf(zooms, 0.95),
    zoom_frames: zooms.length,
  };
  console.log(
    JSON.stringify(figures, (_key, value: unknown) =>
      typeof value === "number" ? Math.round(value * 100) / 100 : value,
    ),
  );
  expect(hovers.length).toBeGreaterThan(100);
  expect(zooms.length).toBeGreaterThan(20);
  // The least of five: whatever else this machine does can only add to what the page needs.
  expect(figures.first_draw_ms_min).toBeLessThan(FIRST_DRAW_MS_MAX);
  expect(figures.hover_ms_p95).toBeLessThan(FRAME_MS_MAX);
  expect(figures.zoom_frame_ms_p95).toBeLessThan(FRAME_MS_MAX);
}

browserTest("100,000 nodes draw within 100 ms and move at 60 frames a second", {}, async ({ page }) => {
  // The fixture, whatever VARVE_URL says: here the page is measured, not the server.
  const fixture = await startFixture({ stacks: manyStacks(45_000) });
  const answer = nextResponse(page);
  await page.goto(`${fixture.url}/?view=flame&live=0`);
  const size = readResponse(await (await answer).text()).length;
  expect(size).toBe(100_000);
  await viewsAreShown(page);
  await measurePicture(page, "100,000 nodes");
  await fixture.close();
});

browserTest("40,000 stacks", {}, async ({ page }) => {
  const stacks = manyStacks(40_000, 11);
  const here = await stored(stacks);
  const answer = nextResponse(page);
  await page.goto(here.address());
  const nodes = readResponse(await (await answer).text());
  await viewsAreShown(page);
  const sum = stacks.reduce((all, stack) => all + BigInt(stack.value), 0n);
  expect(nodes[0].total).toBe(String(sum));
  expect(nodes.length).toBeGreaterThan(40_000);
  await measurePicture(page, "40,000 stacks");
  // Only the rows in sight are in the document.
  expect(await page.locator(".grid-row").count()).toBeLessThan(80);
  expect(Number(await page.locator(".grid").getAttribute("aria-rowcount"))).toBeGreaterThan(1000);
});

const LARGE = process.env.VARVE_LARGE_PROFILE;
if (VARVE_URL === undefined || LARGE === undefined) {
  test.skip("a large C++ profile (needs VARVE_URL and VARVE_LARGE_PROFILE, the path of large_cpp.cpu)", () =>
    undefined);
} else {
  const base = VARVE_URL;
  const profile = readFileSync(LARGE);
  browserTest("a large C++ profile", {}, async ({ page }) => {
    const service = `browser-large-cpp-${Date.now()}`;
    await push(base, service, profile);
    // Its samples lie where the file says: from the first time that varve takes.
    await page.goto(`${base}/?query=${encodeURIComponent(`{service_name="${service}"}`)}&from=946684800&to=now&live=0`);
    await viewsAreShown(page);
    await measurePicture(page, "large_cpp.cpu");
    expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)).toBeLessThanOrEqual(0);
  });
}
