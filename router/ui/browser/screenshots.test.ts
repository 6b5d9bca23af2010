// Writes screenshots for review to the folder VARVE_SCREENSHOTS. They show the varve at VARVE_URL, or generated stacks
// if it is not set.

import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, test } from "vitest";
import { viewsAreShown, visit, withBrowser } from "./chromium";
import { startFixture, STACKS, type Fixture } from "./fixture/server";

const FOLDER = process.env.VARVE_SCREENSHOTS;

describe.skipIf(FOLDER === undefined)("screenshots", () => {
  withBrowser();
  let fixture: Fixture;
  beforeAll(async () => {
    mkdirSync(FOLDER ?? ".", { recursive: true });
    fixture = await startFixture();
  });
  afterAll(() => fixture.close());

  for (const theme of ["light", "dark"] as const) {
    test(`the views in the ${theme} theme`, async () => {
      const { page, context } = await visit({ theme });
      await page.goto(process.env.VARVE_URL ?? fixture.url);
      await viewsAreShown(page);
      await page.waitForTimeout(400);
      const shot = async (name: string): Promise<void> =>
        void (await page.screenshot({ path: join(FOLDER ?? ".", `${name}-${theme}.png`) }));
      await shot("both");
      await page.mouse.move(700, 330);
      await shot("hover");
      await page.locator("#search").fill("json|kernel|tcp");
      await shot("search");
      await page.locator("#search").fill("");
      await page.getByRole("button", { name: "Table", exact: true }).click();
      await page.mouse.move(5, 5);
      await page.waitForTimeout(100);
      await shot("table");
      await context.close();
    });

    test(`other states in the ${theme} theme`, async () => {
      const { page, context } = await visit({ theme });
      const shot = async (name: string): Promise<void> =>
        void (await page.screenshot({ path: join(FOLDER ?? ".", `${name}-${theme}.png`) }));
      const { behaviour } = fixture;
      Object.assign(behaviour, {
        empty: true,
        agent: {
          state: "failed",
          reason: "the kernel did not load the profiler",
          missing: ["CAP_BPF: load the BPF programs", "CAP_PERFMON: open the CPU clock"],
        },
      });
      await page.goto(fixture.url);
      await page.locator(".sender").first().waitFor();
      await page.waitForTimeout(200);
      await shot("empty");
      Object.assign(behaviour, { empty: false, stacks: STACKS.host() });
      await page.goto(`${fixture.url}/?query=${encodeURIComponent('{service_name="api", region="mars"}')}`);
      await page.getByText("excludes everything").first().waitFor();
      await shot("no-data");
      behaviour.stacks = STACKS.many(40_000);
      await page.goto(`${fixture.url}/?view=flame`);
      await viewsAreShown(page);
      await page.waitForTimeout(300);
      await shot("many");
      behaviour.stacks = STACKS.hostile();
      await page.goto(fixture.url);
      await viewsAreShown(page);
      await page.locator(".flame-scroller").hover({ position: { x: 400, y: 50 } });
      await shot("hostile");
      behaviour.stacks = STACKS.host();
      Object.assign(behaviour, {
        error: "the query would read 3.1 GiB of stacks, limit is 1.0 GiB: choose a shorter time range",
        shards: { asked: 4, answered: 3 },
      });
      await page.getByRole("button", { name: "Run", exact: true }).click();
      await page.getByText("3.1 GiB").waitFor();
      await shot("error");
      behaviour.error = "";
      await page.getByRole("button", { name: "Run", exact: true }).click();
      await page.getByText("Partial response").waitFor();
      await page.getByText("show unnamed frames").click();
      await shot("reasons");
      await page.keyboard.press("Escape");
      await page.locator("#selector").fill("");
      await page.locator("#selector").pressSequentially('{service_name="');
      await page.locator(".suggestions li").first().waitFor();
      await shot("completion");
      await context.close();
    });
  }

  test("the views in narrow windows", async () => {
    for (const [width, height] of [
      [1024, 700],
      [640, 400],
    ]) {
      const { page, context } = await visit({ width, height });
      await page.goto(process.env.VARVE_URL ?? fixture.url);
      await viewsAreShown(page);
      await page.waitForTimeout(300);
      await page.screenshot({ path: join(FOLDER ?? ".", `width-${width}.png`), fullPage: true });
      await context.close();
    }
  });
});
