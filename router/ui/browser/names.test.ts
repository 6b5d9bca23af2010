// Frames without names: names that arrive later, and the reasons of those that do not.

import { expect } from "vitest";
import { browserTest, viewsAreShown, withBrowser } from "./chromium";
import { startFixture } from "./fixture/server";
import type { FixtureFrame, FixtureStack } from "./fixture/stacks";

withBrowser();

const LIBPYTHON = "/usr/lib/libpython3.11.so.1.0";
const ADDRESS: FixtureFrame = {
  name: "libpython3.11.so.1.0+0x1af844",
  binary: LIBPYTHON,
  type: "native",
  reason: "converting",
};
const NAMED: FixtureFrame = { name: "_PyEval_EvalFrameDefault", binary: LIBPYTHON, type: "native" };

const stack = (...frames: FixtureStack["frames"]): FixtureStack => ({ service: "billing", frames, value: 5e9 });

browserTest("the view announces missing names, which appear automatically", {}, async ({ page }) => {
  const files = [LIBPYTHON, "/usr/lib/libc.so.6", "/usr/lib/libssl.so.3", "/usr/bin/python3.11"];
  const fixture = await startFixture({ stacks: [stack({ name: "main" }, ADDRESS)], pendingFiles: files });
  await page.goto(`${fixture.url}/?live=0&pick=main`);
  await page
    .getByText("Symbol tables are being built for libpython3.11.so.1.0 and 3 more. Names appear automatically.")
    .waitFor();
  const outlines = (): number =>
    fixture.requests.filter((url) => url.includes("max_nodes=1&") || url.endsWith("max_nodes=1")).length;
  const trees = (): number => fixture.requests.length - outlines();
  await expect.poll(outlines, { timeout: 15_000 }).toBeGreaterThan(1);
  expect(trees(), "the tree is fetched once while nothing changes").toBe(1);
  expect(fixture.ranges.length).toBe(1);
  const first = new URL(fixture.requests[0], fixture.url).searchParams;
  Object.assign(fixture.behaviour, {
    stacks: [stack({ name: "main" }, NAMED)],
    pendingFiles: [],
  });
  await page.locator(".grid-row", { hasText: "_PyEval_EvalFrameDefault" }).waitFor({ timeout: 30_000 });
  await expect.poll(() => page.locator(".notice.names").count()).toBe(0);
  expect(trees()).toBe(2);
  // The timeline is fetched again too, because it may be stacked by function.
  await expect.poll(() => fixture.ranges.length).toBe(2);
  const again = new URL(fixture.requests.at(-1) ?? "", fixture.url).searchParams;
  for (const key of ["query", "start", "end"]) expect(again.get(key), "the same query").toBe(first.get(key));
  const count = fixture.requests.length;
  await page.waitForTimeout(2_500);
  expect(fixture.requests.length, "polling has stopped").toBe(count);
  await fixture.close();
});

browserTest("a hidden tab does not poll for names", {}, async ({ page }) => {
  const fixture = await startFixture({ pendingFiles: ["/usr/lib/libc.so.6"] });
  await page.addInitScript(() => Object.defineProperty(document, "hidden", { get: () => true }));
  await page.goto(`${fixture.url}/?live=0`);
  await page.getByText("Symbol tables are being built for libc.so.6. Names appear automatically.").waitFor();
  await page.waitForTimeout(2_500);
  expect(fixture.requests.length).toBe(1);
  await fixture.close();
});

browserTest("the zoom and the marked function follow a frame to its name", {}, async ({ page }) => {
  const others = [stack({ name: "main" }, { name: "idle" }), stack({ name: "start" })];
  const stacks = (frame: FixtureFrame): FixtureStack[] => [stack({ name: "main" }, frame, { name: "work" }), ...others];
  const fixture = await startFixture({ stacks: stacks(ADDRESS), pendingFiles: [LIBPYTHON] });
  await page.goto(`${fixture.url}/?live=0`);
  const row = page.locator(".grid-row", { hasText: ADDRESS.name });
  await row.dblclick();
  const zoomed = page.locator(".breadcrumb [aria-current]");
  await expect.poll(() => zoomed.textContent()).toBe(ADDRESS.name);
  await row.click();
  await page.locator(".share", { hasText: ADDRESS.name }).waitFor();
  Object.assign(fixture.behaviour, { stacks: stacks(NAMED), pendingFiles: [] });
  await expect.poll(() => zoomed.textContent(), { timeout: 30_000 }).toBe(NAMED.name);
  await page.locator(".share", { hasText: NAMED.name }).waitFor();
  expect(await page.locator(".share b").textContent()).toBe("33.3 %");
  expect(new URL(page.url()).searchParams.get("pick")).toBe(NAMED.name);
  await fixture.close();
});

browserTest("each frame where unwinding stopped has its own reason", {}, async ({ page }) => {
  const marker = (why: string): FixtureFrame => ({
    name: `[unwinding stopped here: ${why}]`,
    type: "abort-marker",
    reason: "unwinding_stopped",
    why: `callers are missing: ${why}`,
  });
  const [first, second] = ["native code (error 4018)", "Go (error 9999)"];
  const stacks = [stack(marker(first), { name: "a" }), { ...stack(marker(second), { name: "b" }), value: 4e9 }];
  const fixture = await startFixture({ stacks });
  await page.goto(`${fixture.url}/?live=0&view=flame`);
  await viewsAreShown(page);
  const width = await page.locator(".flame-scroller").evaluate((element) => element.clientWidth);
  for (const [share, why] of [
    [0.2, first],
    [0.8, second],
  ] as const) {
    await page.locator(".flame-scroller").hover({ position: { x: width * share, y: 30 } });
    await expect.poll(() => page.locator(".tooltip-reason").textContent()).toBe(
      `Incomplete stack: callers are missing: ${why}`,
    );
  }
  expect(await page.locator(".legend").textContent()).toContain("unwinding stopped");
  const statusBar = page.locator(".status-bar");
  expect(await statusBar.textContent()).toContain("100.0 % of frames named");
  await statusBar.getByRole("button", { name: "in incomplete stacks" }).click();
  const dialog = page.getByRole("dialog", { name: "Incomplete stacks" });
  for (const why of [first, second]) expect(await dialog.textContent()).toContain(why);
  await fixture.close();
});
