// Everything that is not a good answer: empty, slow, refused, partial, gone.

import { execSync } from "node:child_process";
import { expect, test } from "vitest";
import { browserTest, viewsAreShown, withBrowser } from "./chromium";
import { startFixture, STACKS } from "./fixture/server";
import { hostStacks, type FixtureStack } from "./fixture/stacks";
import { pprofOf } from "./pprof_writer";
import { push, stored, VARVE_URL } from "./store";

withBrowser();

const EMPTY_URL = process.env.VARVE_EMPTY_URL?.replace(/\/$/, "");
if (EMPTY_URL === undefined) {
  test.skip("an empty store (needs VARVE_EMPTY_URL, a varve without profiles)", () => undefined);
} else {
  browserTest("an empty store says how to send a first profile, and shows it when it comes", {}, async ({ page }) => {
    const base = EMPTY_URL;
    await page.goto(base);
    await page.getByRole("heading", { name: "No profiles yet" }).waitFor();
    const agent = (
      (await (await fetch(`${base}/api/v1/agent`)).json()) as {
        data?: { state: string; missing?: string[]; reason?: string };
      }
    ).data;
    const card = (await page.locator(".card").textContent()) ?? "";
    expect(card).toContain(agent?.state === "running" ? "runs" : agent?.state === "off" ? "off" : "does not run");
    for (const missing of agent?.missing ?? []) expect(card).toContain(missing);
    expect(card.toLowerCase()).toContain((agent?.reason ?? "").toLowerCase());
    await page.locator(".way").first().getByRole("button", { name: "Copy" }).click();
    const command = await page.evaluate(() => navigator.clipboard.readText());
    expect(command).toContain(`${base}/api/v1/push?service_name=`);
    expect(await page.locator(".bottom").isVisible()).toBe(true);
    await push(base, "first", pprofOf(hostStacks(), Date.now() / 1000 - 2));
    await viewsAreShown(page);
    await page.locator(".grid-row", { hasText: "render_invoice" }).waitFor();
  });
}

const [KILL, START] = [process.env.VARVE_KILL_CMD, process.env.VARVE_START_CMD];
if (VARVE_URL === undefined || KILL === undefined || START === undefined) {
  test.skip("a server killed midway (needs VARVE_URL, VARVE_KILL_CMD, VARVE_START_CMD)", () => undefined);
} else {
  browserTest("a server killed midway is said so, and the page recovers by itself", {}, async ({ page }) => {
    const here = await stored(hostStacks());
    await page.goto(here.address());
    await viewsAreShown(page);
    await page.locator(".grid-row", { hasText: "render_invoice" }).waitFor();
    execSync(KILL, { stdio: "inherit" });
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.getByText("No connection.").waitFor();
    await expect.poll(() => page.locator(".notice.error").textContent()).toContain("last answer");
    expect(await page.locator(".grid-row", { hasText: "render_invoice" }).count()).toBe(1);
    execSync(START, { stdio: "inherit" });
    await expect.poll(() => page.locator(".notice.error").count(), { timeout: 40_000 }).toBe(0);
    expect(await page.locator(".grid-row", { hasText: "render_invoice" }).count()).toBe(1);
  });
}

browserTest("a slow answer dims the last picture and can be cancelled", {}, async ({ page }) => {
  const fixture = await startFixture();
  await page.goto(`${fixture.url}/?live=0`);
  await viewsAreShown(page);
  fixture.behaviour.delay_ms = 60_000;
  await page.getByRole("button", { name: "Run", exact: true }).click();
  expect(await page.locator(".picture.stale").count()).toBe(0);
  await page.getByText("Asking the server").waitFor();
  expect(await page.locator(".picture.stale").count()).toBe(1);
  await page.getByRole("button", { name: "Cancel" }).click();
  await expect.poll(() => page.getByText("Asking the server").count()).toBe(0);
  expect(await page.locator(".picture.stale").count()).toBe(0);
  expect(await page.locator(".notice.error").count()).toBe(0);
  await fixture.close();
});

browserTest("an error shows the server's sentence and keeps the picture", {}, async ({ page }) => {
  const fixture = await startFixture();
  await page.goto(`${fixture.url}/?live=0`);
  await viewsAreShown(page);
  fixture.behaviour.error = "the query would read 3.1 GiB <b>of stacks</b>: ask for a shorter time";
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.getByText("The query would read 3.1 GiB <b>of stacks</b>: ask for a shorter time.").waitFor();
  expect(await page.locator(".picture").count()).toBe(1);
  fixture.behaviour.error = "";
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect.poll(() => page.locator(".notice.error").count()).toBe(0);
  await fixture.close();
});

browserTest(
  "a partial answer has a banner, and the reasons for unnamed frames are a click away",
  {},
  async ({ page }) => {
    const fixture = await startFixture({ shards: { asked: 4, answered: 3 } });
    await page.goto(`${fixture.url}/?live=0`);
    await page.getByText("Partial answer.").waitFor();
    expect(await page.locator(".bottom").textContent()).toContain("3 of 4 shards");
    expect(await page.locator(".bottom").textContent()).toContain("14 ms");
    await page.getByText("why not 100 %?").click();
    const dialog = page.getByRole("dialog", { name: "Frames without a name" });
    expect(await dialog.textContent()).toContain("upload it with `varve upload`");
    await page.keyboard.press("Escape");
    await expect.poll(() => dialog.count()).toBe(0);
    await fixture.close();
  },
);

browserTest("names on their way are announced in the view and appear by themselves", {}, async ({ page }) => {
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
    .getByText("Symbol tables are being built for libpython3.11.so.1.0 and 3 more: names appear by themselves.")
    .waitFor();
  const outlines = (): number =>
    fixture.asked.filter((url) => url.includes("max_nodes=1&") || url.endsWith("max_nodes=1")).length;
  const trees = (): number => fixture.asked.length - outlines();
  await expect.poll(outlines, { timeout: 15_000 }).toBeGreaterThan(1);
  expect(trees(), "the tree is asked for once while nothing has changed").toBe(1);
  const question = new URL(fixture.asked[0], fixture.url).searchParams;
  Object.assign(fixture.behaviour, {
    stacks: [stack({ name: "main" }, { ...address, name: "_PyEval_EvalFrameDefault", reason: undefined })],
    pendingFiles: [],
  });
  await page.locator(".grid-row", { hasText: "_PyEval_EvalFrameDefault" }).waitFor({ timeout: 30_000 });
  await expect.poll(() => page.locator(".notice.names").count()).toBe(0);
  expect(trees()).toBe(2);
  const again = new URL(fixture.asked.at(-1) ?? "", fixture.url).searchParams;
  for (const key of ["query", "start", "end"]) expect(again.get(key), "the same picture").toBe(question.get(key));
  const asked = fixture.asked.length;
  await page.waitForTimeout(2_500);
  expect(fixture.asked.length, "nothing is left to ask").toBe(asked);
  await fixture.close();
});

browserTest("a hidden page does not ask for names", {}, async ({ page }) => {
  const fixture = await startFixture({ pendingFiles: ["/usr/lib/libc.so.6"] });
  await page.addInitScript(() => Object.defineProperty(document, "hidden", { get: () => true }));
  await page.goto(`${fixture.url}/?live=0`);
  await page.getByText("Symbol tables are being built for libc.so.6: names appear by themselves.").waitFor();
  await page.waitForTimeout(2_500);
  expect(fixture.asked.length).toBe(1);
  await fixture.close();
});

browserTest("warnings are counted as warnings, and all of them are a click away", {}, async ({ page }) => {
  const warnings = ['left out: names of "/usr/lib/libc.so.6": why', "left out: from 10 to 20", "third <b>one</b>"];
  const fixture = await startFixture({ warnings });
  await page.goto(`${fixture.url}/?live=0`);
  await viewsAreShown(page);
  const bottom = page.locator(".bottom");
  await expect.poll(() => bottom.textContent()).toContain(`3 warnings: ${warnings[0]}`);
  expect(await bottom.textContent()).not.toContain("times left out");
  await page.getByRole("button", { name: "3 warnings" }).click();
  const dialog = page.getByRole("dialog", { name: "Warnings" });
  for (const warning of warnings) expect(await dialog.textContent()).toContain(warning);
  await fixture.close();
});

browserTest("the matcher that excludes everything is named and can be left out", {}, async ({ page }) => {
  const here = await stored(hostStacks());
  const address = here.address().replace(encodeURIComponent("}"), encodeURIComponent(', region="mars"}'));
  await page.goto(address);
  await page.getByText('region="mars" excludes everything').waitFor();
  expect(await page.getByText("excludes everything: without it").count()).toBe(1);
  await page.getByRole("button", { name: "Leave it out" }).click();
  await viewsAreShown(page);
  expect(await page.locator("#selector").inputValue()).toBe(`{service_name="${here.service}"}`);
});

browserTest("a time without data leads to the time that has some", {}, async ({ page }) => {
  const here = await stored(hostStacks());
  await page.goto(here.address("&from=1000000000&to=1000000900"));
  await page.getByText("The time excludes everything").waitFor();
  await page.getByRole("button", { name: /^Show the last|^Show all time/ }).click();
  await viewsAreShown(page);
});

browserTest("a server with a token asks for it once", {}, async ({ page }) => {
  const fixture = await startFixture({ token: "secret" });
  await page.goto(`${fixture.url}/?live=0`);
  await page.getByText("This server wants a token.").waitFor();
  await page.getByLabel("Token").fill("secret");
  await page.getByRole("button", { name: "Use it" }).click();
  await viewsAreShown(page);
  await page.reload();
  await viewsAreShown(page);
  expect(await page.getByText("This server wants a token.").count()).toBe(0);
  await fixture.close();
});

browserTest("an agent that does not run says exactly why", {}, async ({ page }) => {
  const missing = ["CAP_BPF: load the BPF programs", "CAP_PERFMON: open the CPU clock"];
  const fixture = await startFixture({
    empty: true,
    agent: { state: "failed", reason: "the kernel did not load the profiler", missing },
  });
  await page.goto(fixture.url);
  await page.getByText("The local agent does not run").waitFor();
  for (const text of ["The kernel did not load the profiler.", ...missing])
    expect(await page.locator(".card").textContent()).toContain(text);
  Object.assign(fixture.behaviour, { empty: false, stacks: STACKS.host() });
  await viewsAreShown(page);
  await page.getByRole("button", { name: "agent does not run: why?" }).click();
  expect(await page.getByRole("dialog", { name: "Agent" }).textContent()).toContain(missing[1]);
  await fixture.close();
});

browserTest("a live page asks again by itself, and a stopped one does not", {}, async ({ page }) => {
  const fixture = await startFixture();
  await page.clock.install();
  await page.goto(fixture.url);
  await expect.poll(() => fixture.asked.length).toBe(1);
  await page.clock.runFor(10_500);
  await expect.poll(() => fixture.asked.length).toBe(2);
  await page.getByRole("button", { name: "Live" }).click();
  await page.clock.runFor(30_000);
  expect(fixture.asked.length).toBe(2);
  await fixture.close();
});

browserTest("a drag that the browser cancels does not stop a live page", {}, async ({ page }) => {
  const fixture = await startFixture();
  await page.clock.install();
  await page.goto(fixture.url);
  await expect.poll(() => fixture.asked.length).toBe(1);
  await page.locator(".timeline-chart").dispatchEvent("pointerdown");
  await page.clock.runFor(10_500);
  expect(fixture.asked.length).toBe(1);
  await page.locator(".timeline-chart").dispatchEvent("pointercancel");
  await page.clock.runFor(10_500);
  await expect.poll(() => fixture.asked.length).toBe(2);
  await fixture.close();
});

browserTest("every one of many services can be chosen from the menu", {}, async ({ page }) => {
  const stacks = Array.from({ length: 60 }, (_, i) => ({ ...STACKS.host()[0], service: `service-${i}` }));
  const fixture = await startFixture({ stacks });
  await page.goto(`${fixture.url}/?live=0`);
  await viewsAreShown(page);
  await page.locator(".chip-add").click();
  await page.getByRole("menuitem", { name: "service_name" }).click();
  await page.getByText("20 more: type to narrow").waitFor();
  await page.keyboard.type("SERVICE-59");
  await expect.poll(() => page.getByRole("menuitem").count()).toBe(1);
  await page.keyboard.press("Enter");
  await expect.poll(() => page.locator("#selector").inputValue()).toBe('{service_name="service-59"}');
  await fixture.close();
});
