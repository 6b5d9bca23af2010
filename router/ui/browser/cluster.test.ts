// The web UI of each router of a cluster with tokens, while nodes are killed and started again.

import { execSync } from "node:child_process";
import { readFileSync } from "node:fs";
import type { Page } from "playwright-core";
import { expect, test } from "vitest";
import { nextResponse } from "./api_response";
import { browserTest, run, viewsAreShown, visit, withBrowser } from "./chromium";
import type { FixtureStack } from "./fixture/stacks";
import { pprofOf } from "./pprof_writer";

withBrowser();

/** The parts of `cluster.json` that a user needs. */
interface Cluster {
  readonly routers: ReadonlyArray<{ readonly http: string }>;
  readonly tokens: { readonly push: string; readonly read: string };
}

const FOLDER = process.env.VARVE_CLUSTER_DIR;
const KILL = process.env.VARVE_CLUSTER_KILL_CMD;
const START = process.env.VARVE_CLUSTER_START_CMD;
const NAME = "the web UI of each router stays correct while nodes die and return";

/** Number of services. They are so many that all shards have a part of the value of each function. */
const SERVICES = 64;
const FUNCTIONS = 8;
/** Longest wait until the web UI shows a change of the cluster, in milliseconds: the time of seven live queries. */
const SHOWN_MS_MAX = 30_000;
/** Longest time for which the table and the notices may be of different responses, in milliseconds. */
const DRAWN_MS_MAX = 1_000;

const stacks: readonly FixtureStack[] = Array.from({ length: SERVICES }, (_, i) => ({
  service: `cluster-${i}`,
  frames: [{ name: "main" }, { name: `work_${i % FUNCTIONS}` }],
  value: (i + 1) * 1_000_000_007,
}));
/** Value of each function, as all pushes together have it. */
const totals = new Map<string, number>();
for (const { frames, value } of stacks) {
  for (const { name } of frames) totals.set(name, (totals.get(name) ?? 0) + value);
}

/** Seconds of the default time range, over which the timeline shows means. */
const RANGE_S = 900;
/** Largest number of services that have an area of their own in the timeline. */
const OWN_AREAS = 9;
/** Mean of some stacks as the legend of the timeline has it. */
function meanOf(some: readonly FixtureStack[]): string {
  const cores = some.reduce((sum, { value }) => sum + value, 0) / 1e9 / RANGE_S;
  return `${cores.toFixed(cores < 1 ? 3 : 2)} cores`;
}
/** Name and mean of each area of the timeline: the largest services, and all others together. */
const areas: ReadonlyArray<readonly [string, string]> = [
  ...stacks
    .slice(-OWN_AREAS)
    .reverse()
    .map((stack) => [stack.service, meanOf([stack])] as const),
  [`${SERVICES - OWN_AREAS} others`, meanOf(stacks.slice(0, -OWN_AREAS))],
];

/** The content of the window at one moment. */
interface Shown {
  /** Name and total of each row of the table. */
  readonly rows: ReadonlyArray<readonly [string, number]>;
  /** Name and mean of each area of the timeline. */
  readonly areas: ReadonlyArray<readonly [string, string]>;
  /** Warnings and errors above the views. */
  readonly notices: readonly string[];
  readonly isLoading: boolean;
}

function shown(page: Page): Promise<Shown> {
  return page.evaluate(() => {
    const rows = [...document.querySelectorAll<HTMLElement>(".grid-row")];
    const areas = [...document.querySelectorAll(".areas li")];
    const text = (parent: Element, selector: string) => parent.querySelector(selector)?.textContent ?? "";
    const notices = [...document.querySelectorAll(".notice.warn, .notice.error")];
    return {
      rows: rows.map((row) => [text(row, ".grid-name"), Number(row.dataset.total)] as const),
      areas: areas.map((area) => [text(area, ".area-name"), text(area, ".area-value")] as const),
      notices: notices.map((notice) => notice.textContent ?? ""),
      isLoading: document.querySelector(".body")?.textContent?.startsWith("Loading") ?? true,
    };
  });
}

const hasAllValues = ({ rows }: Shown): boolean =>
  rows.length === totals.size && rows.every(([name, total]) => totals.get(name) === total);
const isWhole = (now: Shown): boolean =>
  now.notices.length === 0 && hasAllValues(now) && JSON.stringify(now.areas) === JSON.stringify(areas);

const isPartial = ({ notices }: Shown): boolean => notices.some((notice) => notice.startsWith("Partial response."));
const isRefused = ({ notices }: Shown): boolean => notices.some((notice) => notice.includes("8 of 8 shards did not"));

/** True if nothing is wrong without a notice that says so. After an error, the views keep the response before it. */
function isHonest(now: Shown): boolean {
  if (isPartial(now)) return true;
  return now.rows.length === 0 ? now.isLoading || now.notices.length > 0 : hasAllValues(now);
}

/** Waits until a page shows what is wanted. The page must be honest all the time. Returns the time in milliseconds. */
async function becomes(page: Page, wanted: (now: Shown) => boolean): Promise<number> {
  const began = performance.now();
  let honest = began;
  for (;;) {
    const now = await shown(page);
    const time = performance.now();
    if (isHonest(now)) honest = time;
    const text = JSON.stringify(now);
    expect(time - honest, `wrong values without a notice: ${text}`).toBeLessThan(DRAWN_MS_MAX);
    if (wanted(now)) return Math.round(time - began);
    expect(time - began, `not shown: ${text}`).toBeLessThan(SHOWN_MS_MAX);
    await page.waitForTimeout(20);
  }
}

/** Runs the query, and waits until the page shows the whole response to it. Returns the time in milliseconds. */
async function runsWhole(page: Page): Promise<number> {
  let isAnswered = false;
  const answer = nextResponse(page).then(() => void (isAnswered = true));
  await run(page);
  const [shown_ms] = await Promise.all([becomes(page, (now) => isAnswered && isWhole(now)), answer]);
  return shown_ms;
}

async function reloadsWhole(page: Page): Promise<void> {
  await page.reload();
  await becomes(page, isWhole);
}

/** Opens the web UI of a router, and enters the token as a user does. */
async function open(page: Page, address: string, token: string): Promise<void> {
  await page.goto(address);
  await page.getByText("This server requires a token.").waitFor();
  expect((await shown(page)).rows).toEqual([]);
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Use token" }).click();
  await viewsAreShown(page);
  await becomes(page, isWhole);
  expect(await page.locator(".status-bar").textContent()).toContain("8 of 8 shards");
  // The flame graph has the same values as the table.
  await page.locator(".flame-scroller").focus();
  for (const key of ["ArrowDown", "ArrowDown"]) await page.keyboard.press(key);
  const tooltip = page.locator(".tooltip");
  await tooltip.waitFor();
  const name = (await tooltip.locator(".tooltip-name").textContent()) ?? "";
  expect(name).toMatch(/^work_/);
  expect(await tooltip.locator(".frame-facts").getAttribute("data-total")).toBe(String(totals.get(name)));
}

async function pushAll({ routers, tokens }: Cluster): Promise<void> {
  for (const [i, stack] of stacks.entries()) {
    const { http } = routers[i % routers.length];
    const response = await fetch(`${http}/api/v1/push?service_name=${stack.service}`, {
      method: "POST",
      headers: { authorization: `Bearer ${tokens.push}` },
      body: pprofOf([stack], Date.now() / 1000 - 2) as unknown as BodyInit,
    });
    expect(response.status, await response.text()).toBe(200);
  }
}

if (FOLDER === undefined || KILL === undefined || START === undefined) {
  test.skip(`${NAME} (needs VARVE_CLUSTER_DIR, VARVE_CLUSTER_KILL_CMD, VARVE_CLUSTER_START_CMD)`, () => undefined);
} else {
  browserTest(NAME, { timeout_ms: 10 * SHOWN_MS_MAX }, async ({ page }) => {
    const cluster = JSON.parse(readFileSync(`${FOLDER}/cluster.json`, "utf8")) as Cluster;
    await pushAll(cluster);
    const second = await visit();
    const pages = [page, second.page];
    expect(cluster.routers.length).toBe(pages.length);
    for (const [i, { http }] of cluster.routers.entries()) await open(pages[i], http, cluster.tokens.read);

    // Every shard still has a majority of its members: others lead the shards of the killed node.
    execSync(KILL, { stdio: "inherit" });
    const failed_over_ms = await Promise.all(pages.map(runsWhole));
    await Promise.all(pages.map(reloadsWhole));

    // Some or all shards have lost their majority, and nothing may look complete.
    execSync(KILL, { stdio: "inherit" });
    await Promise.all(pages.map(run));
    const isReported = (now: Shown): boolean => isPartial(now) || isRefused(now);
    const reported_ms = await Promise.all(pages.map((one) => becomes(one, isReported)));
    await Promise.all(pages.map((one) => one.reload()));
    // After the reload, there is no response that an error could leave in the views.
    const isReloaded = (now: Shown): boolean => (isPartial(now) ? now.rows.length > 0 : isRefused(now));
    await Promise.all(pages.map((one) => becomes(one, isReloaded)));
    const reloaded = await Promise.all(pages.map(shown));
    for (const now of reloaded) expect(hasAllValues(now), JSON.stringify(now)).toBe(false);
    const partial = reloaded.map(isPartial);

    execSync(START, { stdio: "inherit" });
    const recovered_ms = await Promise.all(pages.map((one) => becomes(one, isWhole)));
    await Promise.all(pages.map(runsWhole));
    console.log(JSON.stringify({ suite: "cluster_ui", failed_over_ms, reported_ms, partial, recovered_ms }));
    expect(second.errors).toEqual([]);
    await second.context.close();
  });
}
