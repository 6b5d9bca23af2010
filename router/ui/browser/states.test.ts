// States other than a complete response: empty, slow, refused, partial, no connection.

import { execSync } from "node:child_process";
import { expect, test } from "vitest";
import { SLOW_MS } from "../src/state/loader";
import { browserTest, run, viewsAreShown, withBrowser } from "./chromium";
import { startFixture, STACKS } from "./fixture/server";
import { hostStacks, type FixtureStack } from "./fixture/stacks";
import { pprofOf } from "./pprof_writer";
import { push, stored, VARVE_URL } from "./store";

withBrowser();

const EMPTY_URL = process.env.VARVE_EMPTY_URL?.replace(/\/$/, "");
const EMPTY_NAME = "an empty store shows how to send a profile, then the first one";
if (EMPTY_URL === undefined) {
  test.skip(`${EMPTY_NAME} (needs VARVE_EMPTY_URL, a varve without profiles)`, () => undefined);
} else {
  browserTest(EMPTY_NAME, {}, async ({ page }) => {
    const base = EMPTY_URL;
    await page.goto(base);
    await page.getByRole("heading", { name: "No profiles yet" }).waitFor();
    const agent = (
      (await (await fetch(`${base}/api/v1/agent`)).json()) as {
        data?: { state: string; missing?: string[]; reason?: string };
      }
    ).data;
    const card = (await page.locator(".card").textContent()) ?? "";
    expect(card).toContain(
      agent?.state === "running" ? "is running" : agent?.state === "off" ? "is off" : "is not running",
    );
    for (const missing of agent?.missing ?? []) expect(card).toContain(missing);
    expect(card.toLowerCase()).toContain((agent?.reason ?? "").toLowerCase());
    await page.locator(".sender").first().getByRole("button", { name: "Copy" }).click();
    const command = await page.evaluate(() => navigator.clipboard.readText());
    expect(command).toContain(`${base}/api/v1/push?service_name=`);
    expect(await page.locator(".status-bar").isVisible()).toBe(true);
    await push(base, "first", pprofOf(hostStacks(), Date.now() / 1000 - 2));
    await viewsAreShown(page);
    await page.locator(".grid-row", { hasText: "render_invoice" }).waitFor();
  });
}

const KILL = process.env.VARVE_KILL_CMD;
const START = process.env.VARVE_START_CMD;
const KILLED_NAME = "the web UI reports a killed server and reconnects automatically";
if (VARVE_URL === undefined || KILL === undefined || START === undefined) {
  test.skip(`${KILLED_NAME} (needs VARVE_URL, VARVE_KILL_CMD, VARVE_START_CMD)`, () => undefined);
} else {
  browserTest(KILLED_NAME, {}, async ({ page }) => {
    const here = await stored(hostStacks());
    await page.goto(here.address());
    await viewsAreShown(page);
    await page.locator(".grid-row", { hasText: "render_invoice" }).waitFor();
    execSync(KILL, { stdio: "inherit" });
    await run(page);
    await page.getByText("No connection.").waitFor();
    await expect.poll(() => page.locator(".notice.error").textContent()).toContain("last response");
    expect(await page.locator(".grid-row", { hasText: "render_invoice" }).count()).toBe(1);
    execSync(START, { stdio: "inherit" });
    await expect.poll(() => page.locator(".notice.error").count(), { timeout: 40_000 }).toBe(0);
    expect(await page.locator(".grid-row", { hasText: "render_invoice" }).count()).toBe(1);
  });
}

browserTest("a slow response dims the views after 300 ms and can be cancelled", {}, async ({ page }) => {
  const fixture = await startFixture();
  await page.goto(`${fixture.url}/?live=0`);
  await viewsAreShown(page);
  fixture.behaviour.delay_ms = 60_000;
  // The test controls the tab's clock: a busy machine would miss the moment before the views are dimmed.
  await page.clock.install();
  await page.clock.pauseAt(Date.now() + 1_000);
  await run(page);
  await page.clock.runFor(SLOW_MS - 1);
  expect(await page.locator(".views.stale").count()).toBe(0);
  await page.clock.runFor(2);
  await page.getByText("Waiting for the server").waitFor();
  expect(await page.locator(".views.stale").count()).toBe(1);
  await page.getByRole("button", { name: "Cancel" }).click();
  await expect.poll(() => page.getByText("Waiting for the server").count()).toBe(0);
  expect(await page.locator(".views.stale").count()).toBe(0);
  expect(await page.locator(".notice.error").count()).toBe(0);
  await fixture.close();
});

browserTest("an error shows the server's message and keeps the views", {}, async ({ page }) => {
  const fixture = await startFixture();
  await page.goto(`${fixture.url}/?live=0`);
  await viewsAreShown(page);
  fixture.behaviour.error = "the query would read 3.1 GiB <b>of stacks</b>: choose a shorter time range";
  await run(page);
  await page.getByText("The query would read 3.1 GiB <b>of stacks</b>: choose a shorter time range.").waitFor();
  expect(await page.locator(".views").count()).toBe(1);
  fixture.behaviour.error = "";
  await run(page);
  await expect.poll(() => page.locator(".notice.error").count()).toBe(0);
  await fixture.close();
});

browserTest("a partial response has a banner, and unnamed frames have reasons", {}, async ({ page }) => {
  const fixture = await startFixture({ shards: { asked: 4, answered: 3 } });
  await page.goto(`${fixture.url}/?live=0`);
  await page.getByText("Partial response.").waitFor();
  expect(await page.locator(".status-bar").textContent()).toContain("3 of 4 shards");
  expect(await page.locator(".status-bar").textContent()).toContain("14 ms");
  await page.getByText("why not 100 %?").click();
  const dialog = page.getByRole("dialog", { name: "Frames without a name" });
  expect(await dialog.textContent()).toContain("upload it with `varve upload`");
  await page.keyboard.press("Escape");
  await expect.poll(() => dialog.count()).toBe(0);
  await fixture.close();
});

browserTest("the view announces missing names, which appear automatically", {}, async ({ page }) => {
  const address = {
    name: "libpython3.11.so.1.0+0x1af844",
    binary: "/usr/lib/libpython3.11.so.1.0",
    type: "native",
    reason: "converting",
  };
  const stack = (...frames: FixtureStack["frames"]): FixtureStack => ({ service: "billing", frames, value: 5e9 });
  const files = ["/usr/lib/libpython3.11.so.1.0", "/usr/lib/libc.so.6", "/usr/lib/libssl.so.3", "/usr/bin/python3.11"];
  const fixture = await startFixture({ stacks: [stack({ name: "main" }, address)], pendingFiles: files });
  await page.goto(`${fixture.url}/?live=0&pick=main`);
  await page
    .getByText("Symbol tables are being built for libpython3.11.so.1.0 and 3 more. Names appear automatically.")
    .waitFor();
  const outlines = (): number =>
    fixture.requests.filter((url) => url.includes("max_nodes=1&") || url.endsWith("max_nodes=1")).length;
  const trees = (): number => fixture.requests.length - outlines();
  await expect.poll(outlines, { timeout: 15_000 }).toBeGreaterThan(1);
  expect(trees(), "the tree is fetched once while nothing changes").toBe(1);
  const first = new URL(fixture.requests[0], fixture.url).searchParams;
  Object.assign(fixture.behaviour, {
    stacks: [stack({ name: "main" }, { ...address, name: "_PyEval_EvalFrameDefault", reason: undefined })],
    pendingFiles: [],
  });
  await page.locator(".grid-row", { hasText: "_PyEval_EvalFrameDefault" }).waitFor({ timeout: 30_000 });
  await expect.poll(() => page.locator(".notice.names").count()).toBe(0);
  expect(trees()).toBe(2);
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

browserTest("the status bar counts warnings, and a click shows all of them", {}, async ({ page }) => {
  const warnings = ['names of "/usr/lib/libc.so.6" are missing', "no single samples from 10 to 20", "third <b>one</b>"];
  const fixture = await startFixture({ warnings });
  await page.goto(`${fixture.url}/?live=0`);
  await viewsAreShown(page);
  const statusBar = page.locator(".status-bar");
  await expect.poll(() => statusBar.textContent()).toContain(`3 warnings: ${warnings[0]}`);
  await page.getByRole("button", { name: "3 warnings" }).click();
  const dialog = page.getByRole("dialog", { name: "Warnings" });
  for (const warning of warnings) expect(await dialog.textContent()).toContain(warning);
  await fixture.close();
});

browserTest("damaged data has a banner that names the first damaged time", {}, async ({ page }) => {
  const damaged = (times: string): string => `damaged: ${times}: values of tier 1m cannot be read from disk`;
  const fixture = await startFixture({ warnings: [damaged("1 to 2"), "missing: 3 to 4", damaged("5 to 6")] });
  await page.goto(`${fixture.url}/?live=0`);
  await page.getByText("Damaged data.").waitFor();
  expect(await page.locator(".notice.warn").textContent()).toContain("cannot be read from disk. And 1 more.");
  await fixture.close();
});

browserTest("the matcher that excludes everything is named and can be removed", {}, async ({ page }) => {
  const here = await stored(hostStacks());
  const address = here.address().replace(encodeURIComponent("}"), encodeURIComponent(', region="mars"}'));
  await page.goto(address);
  await page.getByText('region="mars" excludes everything').waitFor();
  expect(await page.getByText("excludes everything. Without it").count()).toBe(1);
  await page.getByRole("button", { name: "Remove this matcher" }).click();
  await viewsAreShown(page);
  expect(await page.locator("#selector").inputValue()).toBe(`{service_name="${here.service}"}`);
});

browserTest("a time range without data leads to a range with data", {}, async ({ page }) => {
  const here = await stored(hostStacks());
  await page.goto(here.address("&from=1000000000&to=1000000900"));
  await page.getByText("The time range has no data").waitFor();
  await page.getByRole("button", { name: /^Show the last|^Show all time/ }).click();
  await viewsAreShown(page);
});

browserTest("a token is entered once per tab", {}, async ({ page }) => {
  const fixture = await startFixture({ token: "secret" });
  await page.goto(`${fixture.url}/?live=0`);
  await page.getByText("This server requires a token.").waitFor();
  await page.getByLabel("Token").fill("secret");
  await page.getByRole("button", { name: "Use token" }).click();
  await viewsAreShown(page);
  await page.reload();
  await viewsAreShown(page);
  expect(await page.getByText("This server requires a token.").count()).toBe(0);
  await fixture.close();
});

browserTest("an agent that is not running has its reason shown", {}, async ({ page }) => {
  const missing = ["CAP_BPF: load the BPF programs", "CAP_PERFMON: open the CPU clock"];
  const fixture = await startFixture({
    empty: true,
    agent: { state: "failed", reason: "the kernel did not load the profiler", missing },
  });
  await page.goto(fixture.url);
  await page.getByText("The local agent is not running").waitFor();
  for (const text of ["The kernel did not load the profiler.", ...missing])
    expect(await page.locator(".card").textContent()).toContain(text);
  Object.assign(fixture.behaviour, { empty: false, stacks: STACKS.host() });
  await viewsAreShown(page);
  await page.getByRole("button", { name: "agent not running: why?" }).click();
  expect(await page.getByRole("dialog", { name: "Agent" }).textContent()).toContain(missing[1]);
  await fixture.close();
});

browserTest("a live query repeats automatically, and a stopped one does not", {}, async ({ page }) => {
  const fixture = await startFixture();
  await page.clock.install();
  await page.goto(fixture.url);
  await expect.poll(() => fixture.requests.length).toBe(1);
  await page.clock.runFor(10_500);
  await expect.poll(() => fixture.requests.length).toBe(2);
  await page.getByRole("button", { name: "Live" }).click();
  await page.clock.runFor(30_000);
  expect(fixture.requests.length).toBe(2);
  await fixture.close();
});

browserTest("a drag that the browser cancels does not stop a live query", {}, async ({ page }) => {
  const fixture = await startFixture();
  await page.clock.install();
  await page.goto(fixture.url);
  await expect.poll(() => fixture.requests.length).toBe(1);
  await page.locator(".timeline-chart").dispatchEvent("pointerdown");
  await page.clock.runFor(10_500);
  expect(fixture.requests.length).toBe(1);
  await page.locator(".timeline-chart").dispatchEvent("pointercancel");
  await page.clock.runFor(10_500);
  await expect.poll(() => fixture.requests.length).toBe(2);
  await fixture.close();
});

browserTest("each of many services can be chosen from the menu", {}, async ({ page }) => {
  const stacks = Array.from({ length: 60 }, (_, i) => ({ ...STACKS.host()[0], service: `service-${i}` }));
  const fixture = await startFixture({ stacks });
  await page.goto(`${fixture.url}/?live=0`);
  await viewsAreShown(page);
  await page.locator(".chip-add").click();
  await page.getByRole("menuitem", { name: "service_name" }).click();
  await page.getByText("20 more: type to filter").waitFor();
  await page.keyboard.type("SERVICE-59");
  await expect.poll(() => page.getByRole("menuitem").count()).toBe(1);
  await page.keyboard.press("Enter");
  await expect.poll(() => page.locator("#selector").inputValue()).toBe('{service_name="service-59"}');
  await fixture.close();
});
