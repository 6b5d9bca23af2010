// States other than a complete response: empty, slow, refused, partial, no connection.

import { execSync } from "node:child_process";
import { expect, test } from "vitest";
import { LIVE_MS } from "../src/state/app_store";
import { SLOW_MS } from "../src/state/loader";
import { browserTest, run, viewsAreShown, withBrowser } from "./chromium";
import { startFixture, STACKS } from "./fixture/server";
import { hostStacks } from "./fixture/stacks";
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
  // The test controls the tab's clock. A busy machine would miss the moment just before the views are dimmed.
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

browserTest("a partial timeline has a banner, which goes away with the next response", {}, async ({ page }) => {
  const missing = [{ shard: 7, reason: "no leader" }];
  const fixture = await startFixture({ rangeShards: { asked: 8, answered: 7, missing } });
  await page.goto(`${fixture.url}/?live=0`);
  await page.getByText("7 of 8 shards answered (missing: 7)").waitFor();
  fixture.behaviour.rangeShards = undefined;
  await run(page);
  await expect.poll(() => page.getByText("Partial response.").count()).toBe(0);
  await fixture.close();
});

browserTest("a store is not called empty if a shard did not answer", {}, async ({ page }) => {
  const missing = [{ shard: 7, reason: "no leader" }];
  const fixture = await startFixture({ empty: true, typesShards: { asked: 8, answered: 7, missing } });
  await page.goto(fixture.url);
  await page.getByText("7 of 8 shards answered (missing: 7)").waitFor();
  expect(await page.getByText("No profiles yet").count()).toBe(0);
  Object.assign(fixture.behaviour, { empty: false, typesShards: undefined });
  await viewsAreShown(page);
  await expect.poll(() => page.getByText("Partial response.").count()).toBe(0);
  await fixture.close();
});

browserTest("a partial response has a banner, and unnamed frames have reasons", {}, async ({ page }) => {
  const missing = [{ shard: 3, slots: [[2, 2]], reason: "no <b>leader</b>" }];
  const fixture = await startFixture({ shards: { asked: 4, answered: 3, missing } });
  await page.goto(`${fixture.url}/?live=0`);
  const banner = page.locator(".notice.warn", { hasText: "Partial response." });
  expect(await banner.textContent()).toContain("3 of 4 shards answered (missing: 3)");
  expect(await banner.getAttribute("title")).toBe("3: no <b>leader</b>");
  expect(await page.locator(".status-bar").textContent()).toContain("3 of 4 shards");
  expect(await page.locator(".status-bar").textContent()).toContain("14 ms");
  await page.getByText("show unnamed frames").click();
  const dialog = page.getByRole("dialog", { name: "Frames without a name" });
  expect(await dialog.textContent()).toContain("upload it with `varve upload`");
  await page.keyboard.press("Escape");
  await expect.poll(() => dialog.count()).toBe(0);
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

browserTest("the timeline reports data that it is missing", {}, async ({ page }) => {
  const rangeWarnings = ["damaged: 1 to 2: values of tier 1m cannot be read from disk", "missing: 3 to 4"];
  const fixture = await startFixture({ warnings: [rangeWarnings[1]], rangeWarnings });
  await page.goto(`${fixture.url}/?live=0`);
  await page.getByText("Damaged data.").waitFor();
  await page.locator(".timeline", { hasText: "incomplete: see the warnings" }).waitFor();
  // The second warning is in both responses, and counts once.
  await page.getByRole("button", { name: "2 warnings" }).click();
  const dialog = page.getByRole("dialog", { name: "Warnings" });
  for (const warning of rangeWarnings) expect(await dialog.textContent()).toContain(warning);
  await fixture.close();
});

browserTest("an error of the timeline alone does not call the view old", {}, async ({ page }) => {
  const fixture = await startFixture();
  await page.goto(`${fixture.url}/?live=0`);
  await viewsAreShown(page);
  fixture.behaviour.rangeError = "the query has too many series";
  await run(page);
  await page.getByText("The query has too many series. The timeline shows the last response.").waitFor();
  expect(await page.getByText("The view below").count()).toBe(0);
  await fixture.close();
});

browserTest("the first query is announced as loading", {}, async ({ page }) => {
  const fixture = await startFixture({ delay_ms: 60_000 });
  await page.goto(fixture.url);
  await page.locator(".body", { hasText: "Loading" }).waitFor();
  expect(await page.locator(".status-bar").textContent()).toContain("loading");
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.locator(".status-bar", { hasText: "no response yet" }).waitFor();
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

browserTest("the reason for no data is looked for once per query", {}, async ({ page }) => {
  const fixture = await startFixture();
  await page.clock.install();
  await page.goto(`${fixture.url}/?query=${encodeURIComponent('{service_name="none"}')}`);
  await page.getByText("excludes everything").waitFor();
  const outlines = (): number => fixture.requests.filter((url) => url.endsWith("max_nodes=1")).length;
  expect([fixture.requests.length, outlines()]).toEqual([2, 1]);
  await page.clock.runFor(LIVE_MS + 500);
  await expect.poll(() => fixture.requests.length).toBe(3);
  await page.clock.runFor(LIVE_MS + 500);
  await expect.poll(() => fixture.requests.length).toBe(4);
  expect(outlines()).toBe(1);
  await page.getByText("excludes everything").waitFor();
  await fixture.close();
});

browserTest("a profile type without data does not ask to remove matchers", {}, async ({ page }) => {
  const fixture = await startFixture({ stacks: [] });
  await page.goto(`${fixture.url}/?live=0`);
  await page.getByText("No data of this profile type is stored.").waitFor();
  expect(await page.getByText("matchers").count()).toBe(0);
  await fixture.close();
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

browserTest("an empty store shows a running agent, or why its state is unknown", {}, async ({ page }) => {
  const fixture = await startFixture({ empty: true, agentError: "the agent does not respond" });
  await page.goto(fixture.url);
  await page.getByText("The state of the local agent is unknown").waitFor();
  await page.getByText("The agent does not respond.").waitFor();
  const agent = { state: "running", samples: 0, dropped: 0, frequency_hz: 20 };
  Object.assign(fixture.behaviour, { agentError: "", agent });
  await page.getByText("Its first samples arrive within seconds").waitFor();
  expect(await page.locator(".card").textContent()).toContain("20 samples per second per CPU");
  fixture.behaviour.agent = { ...agent, samples: 7 };
  await page.getByRole("heading", { name: "The local agent is running", exact: true }).waitFor();
  await fixture.close();
});

browserTest("a closed dialog does not release what is still open", {}, async ({ page }) => {
  const fixture = await startFixture();
  await page.clock.install();
  await page.goto(fixture.url);
  await expect.poll(() => fixture.requests.length).toBe(1);
  await page.getByRole("button", { name: "Last 15 minutes" }).click();
  await page.getByLabel("From", { exact: true }).waitFor();
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keys" }).getByRole("button", { name: "Close" }).press("Enter");
  await expect.poll(() => page.getByRole("dialog", { name: "Keys" }).count()).toBe(0);
  await page.clock.runFor(LIVE_MS + 500);
  expect(fixture.requests.length).toBe(1);
  await page.keyboard.press("Escape");
  await expect.poll(() => page.getByRole("dialog", { name: "Time range" }).count()).toBe(0);
  await page.clock.runFor(LIVE_MS + 500);
  await expect.poll(() => fixture.requests.length).toBe(2);
  await fixture.close();
});

browserTest("a live query repeats automatically, and a stopped one does not", {}, async ({ page }) => {
  const fixture = await startFixture();
  await page.clock.install();
  await page.goto(fixture.url);
  await expect.poll(() => fixture.requests.length).toBe(1);
  await page.clock.runFor(LIVE_MS + 500);
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
  await page.clock.runFor(LIVE_MS + 500);
  expect(fixture.requests.length).toBe(1);
  await page.locator(".timeline-chart").dispatchEvent("pointercancel");
  await page.clock.runFor(LIVE_MS + 500);
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
