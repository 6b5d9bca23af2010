// A person's path over the page, on stacks whose numbers the test knows.

import { expect } from "vitest";
import { gunzipSync } from "node:zlib";
import { readFileSync } from "node:fs";
import { browserTest, viewsAreShown, withBrowser } from "./chromium";
import { hostStacks, HOSTILE_NAMES, hostileStacks } from "./fixture/stacks";
import { stored, VARVE_URL } from "./store";

withBrowser();

const HOT = process.env.VARVE_HOT_FUNCTION;
if (VARVE_URL !== undefined && HOT !== undefined) {
  browserTest("from opening the page to the hot function of this host", {}, async ({ page }) => {
    await page.goto(VARVE_URL ?? "");
    await viewsAreShown(page);
    await expect.poll(() => page.locator(".bottom").textContent()).toMatch(/sample/);
    await page.keyboard.press("/");
    await page.keyboard.type(HOT);
    // The agent has sent it, or is about to: the page asks again by itself.
    await page.locator(".grid-row", { hasText: HOT }).first().waitFor({ timeout: 45_000 });
    // What was stored before it began weighs too, at first.
    const share = async (): Promise<number> => Number.parseFloat((await page.locator(".share b").textContent()) ?? "0");
    await expect.poll(share, { timeout: 30_000 }).toBeGreaterThan(1);
    await page.locator(".grid-row", { hasText: HOT }).first().dblclick();
    await expect.poll(() => page.locator(".breadcrumb [aria-current]").textContent()).toContain(HOT);
    await page.locator(".flame-scroller").focus();
    // To its caller and back.
    await page.keyboard.press("ArrowUp");
    await page.keyboard.press("ArrowDown");
    const tooltip = page.locator(".tooltip");
    await expect.poll(() => tooltip.locator(".tooltip-name").textContent()).toContain(HOT);
    expect(await tooltip.textContent()).toMatch(/total/);
  });
}

browserTest("from the whole picture to one function and back", {}, async ({ page }) => {
  const here = await stored(hostStacks());
  await page.goto(here.address());
  await viewsAreShown(page);
  const drawn_ms = await page.evaluate(() => {
    const [first] = performance.getEntriesByName("varve:flame-first-draw");
    return first.startTime + first.duration;
  });
  console.log(JSON.stringify({ suite: "browser", opened_to_picture_ms: Math.round(drawn_ms) }));
  expect(drawn_ms).toBeLessThan(1000);
  await page.keyboard.press("/");
  await page.keyboard.type("render_invoice|format_am");
  // Both lie in one stack: it counts once, so the share is that of the outer function.
  const row = page.locator(".grid-row", { hasText: "render_invoice" });
  await expect.poll(() => row.count()).toBe(1);
  expect(await page.locator(".grid-row").count()).toBe(2);
  expect(await page.locator(".share b").textContent()).toBe(await row.locator(".grid-total .grid-share").textContent());
  await page.keyboard.press("Escape");
  await expect.poll(() => page.locator(".grid-row").count()).toBeGreaterThan(5);

  await page.locator(".grid-row", { hasText: "render_invoice" }).dblclick();
  await expect.poll(() => page.locator(".breadcrumb [aria-current]").textContent()).toBe("render_invoice");
  expect(page.url()).toContain("zoom=");
  const zoomed = page.url();
  await page.reload();
  await viewsAreShown(page);
  expect(await page.locator(".breadcrumb [aria-current]").textContent()).toBe("render_invoice");
  await page.goBack();
  await expect.poll(() => page.locator(".breadcrumb [aria-current]").count()).toBe(0);
  await page.goForward();
  expect(page.url()).toBe(zoomed);
  await page.locator(".flame-scroller").focus();
  await page.keyboard.press("Escape");
  await expect.poll(() => page.locator(".breadcrumb [aria-current]").count()).toBe(0);
});

browserTest("the table sorts, picks and is walked by keys", {}, async ({ page }) => {
  const here = await stored(hostStacks());
  await page.goto(here.address("&view=table"));
  await page.locator(".grid-row").first().waitFor();
  const totals = async (): Promise<number[]> =>
    page.locator(".grid-row").evaluateAll((rows) => rows.map((row) => Number((row as HTMLElement).dataset.total)));
  await page.getByRole("button", { name: "total", exact: true }).click();
  await expect.poll(async () => (await totals()).every((value, i, all) => i === 0 || all[i - 1] >= value)).toBe(true);
  expect(await page.locator('[aria-sort="descending"]').textContent()).toContain("total");
  await page.getByRole("button", { name: "total" }).click();
  await expect.poll(async () => (await totals()).every((value, i, all) => i === 0 || all[i - 1] <= value)).toBe(true);
  await page.locator(".grid-scroller").focus();
  await page.keyboard.press("End");
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("Enter");
  const picked = page.locator(".grid-row.picked");
  await expect.poll(() => picked.count()).toBe(1);
  expect(await page.locator(".share").textContent()).toContain(
    (await picked.locator(".grid-name").textContent()) ?? "?",
  );
  expect(page.url()).toContain("pick=");
});

browserTest("the selector completes, chips and menus edit the same text", {}, async ({ page }) => {
  const here = await stored(hostStacks());
  await page.goto(here.address());
  await viewsAreShown(page);
  const selector = page.locator("#selector");
  expect(await selector.inputValue()).toBe(`{service_name="${here.service}"}`);
  await page.locator(".chip-remove").click();
  await expect.poll(() => selector.inputValue()).toBe("{}");
  await selector.fill("");
  await selector.pressSequentially("{service_n");
  await page.locator(".suggestions li", { hasText: "service_name" }).first().waitFor();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  expect(await selector.inputValue()).toMatch(/service_name=""/);
  await page.keyboard.type(here.service.slice(0, -1));
  await page.locator(".suggestions li", { hasText: here.service }).waitFor();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Tab");
  await page.keyboard.type("}");
  await page.keyboard.press("Enter");
  await expect.poll(() => page.locator(".chip-value").count()).toBe(1);
  expect(await page.locator(".chip-value").textContent()).toContain(here.service);
  // A broken selector says where, and the picture stays.
  await selector.fill('{service_name="a" x="b"}');
  await page.keyboard.press("Enter");
  expect(await page.locator(".field-fault").textContent()).toContain("comma");
  expect(await page.locator(".picture").count()).toBe(1);
});

browserTest("a frame's menu narrows to its stacks", {}, async ({ page }) => {
  const here = await stored(hostStacks());
  await page.goto(here.address());
  await viewsAreShown(page);
  await page.locator(".grid-row", { hasText: "render_invoice" }).click({ button: "right" });
  await page.getByRole("menuitem", { name: "Copy name" }).click();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toBe("render_invoice");
  const answered = page.waitForResponse((response) => response.url().includes("flamegraph"));
  await page.locator(".grid-row", { hasText: "render_invoice" }).click({ button: "right" });
  await page.getByRole("menuitem", { name: "Only stacks with it" }).click();
  expect((await answered).status(), await (await answered).text()).toBe(200);
  await expect.poll(() => page.locator("#selector").inputValue()).toContain('stack_function="render_invoice"');
  await expect
    .poll(() =>
      page.locator(".grid-row", { hasText: "render_invoice" }).locator(".grid-total .grid-share").textContent(),
    )
    .toBe("100.0 %");
  await expect.poll(() => page.locator(".grid-row", { hasText: "sqlite3_step" }).count()).toBe(0);
});

browserTest("the picture can be taken away: link and pprof", {}, async ({ page }) => {
  const here = await stored(hostStacks());
  await page.goto(here.address("&view=flame&flip=1"));
  await viewsAreShown(page);
  await page.getByRole("button", { name: "Copy link" }).click();
  const link = new URL(await page.evaluate(() => navigator.clipboard.readText()));
  expect(Number(link.searchParams.get("to")) - Number(link.searchParams.get("from"))).toBeCloseTo(900, 1);
  expect([link.searchParams.get("view"), link.searchParams.get("flip"), link.searchParams.get("live")]).toEqual([
    "flame",
    "1",
    "0",
  ]);
  if (VARVE_URL === undefined) return;
  const downloading = page.waitForEvent("download");
  await page.getByRole("button", { name: "pprof" }).click();
  const path = await (await downloading).path();
  expect(gunzipSync(readFileSync(path)).toString("latin1")).toContain("render_invoice");
});

browserTest("dragging over the timeline zooms in time", {}, async ({ page }) => {
  const here = await stored(hostStacks());
  await page.goto(here.address());
  await viewsAreShown(page);
  await page.locator(".u-over").waitFor();
  const box = await page.locator(".u-over").boundingBox();
  if (box === null) throw new Error("no timeline");
  await page.mouse.move(box.x + box.width * 0.5, box.y + 40);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.75, box.y + 40, { steps: 5 });
  await page.mouse.up();
  await expect.poll(() => new URL(page.url()).searchParams.get("from")).toMatch(/^\d+$/);
  const asked = new URL(page.url()).searchParams;
  expect(Math.abs(Number(asked.get("to")) - Number(asked.get("from")) - 225)).toBeLessThan(10);
  await page.goBack();
  expect(new URL(page.url()).searchParams.get("from")).toBe(null);
});

browserTest("names with <script> and of 5 kB stay names", {}, async ({ page }) => {
  const here = await stored(hostileStacks());
  await page.goto(here.address());
  await viewsAreShown(page);
  await expect.poll(() => page.locator(".grid-row").count()).toBe(HOSTILE_NAMES.length + 1);
  const scroller = page.locator(".flame-scroller");
  const width = await scroller.evaluate((element) => element.clientWidth);
  let longest = 0;
  for (let x = 5; x < width; x += 12) {
    await scroller.hover({ position: { x, y: 50 } });
    const box = await page.locator(".tooltip").boundingBox();
    if (box === null) throw new Error(`no tooltip at ${x}`);
    expect(box.x).toBeGreaterThanOrEqual(0);
    expect(box.x + box.width).toBeLessThanOrEqual(1280);
    expect(box.y + box.height).toBeLessThanOrEqual(800);
    longest = Math.max(longest, ((await page.locator(".tooltip-name").textContent()) ?? "").length);
  }
  expect(longest).toBeGreaterThan(1000);
  await page.locator(".grid-row", { hasText: "std::tuple" }).dblclick();
  await page.locator(".grid-row", { hasText: "std::tuple" }).click({ button: "right" });
  await page.getByRole("menu").waitFor();
  await page.keyboard.press("Escape");
  expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)).toBeLessThanOrEqual(0);
  expect(await page.evaluate(() => (window as unknown as { hacked?: boolean }).hacked)).toBe(undefined);
  expect(await page.locator("#page script, #page img").count()).toBe(0);
});

browserTest(
  "keys, themes and a window of 1024 pixels at 200 per cent",
  { width: 512, height: 384, scale: 2 },
  async ({ page }) => {
    const here = await stored(hostStacks());
    await page.goto(here.address());
    await viewsAreShown(page);
    expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)).toBeLessThanOrEqual(0);
    const theme = (): Promise<string | undefined> => page.evaluate(() => document.documentElement.dataset.theme);
    expect(await theme()).toBe("light");
    await page.keyboard.press("t");
    expect(await theme()).toBe("dark");
    await page.reload();
    await viewsAreShown(page);
    expect(await theme()).toBe("dark");
    await page.keyboard.press("f");
    expect(page.url()).toContain("flip=1");
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keys" }).waitFor();
    await page.keyboard.press("Escape");
    await expect.poll(() => page.getByRole("dialog").count()).toBe(0);
  },
);
