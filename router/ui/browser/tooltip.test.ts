// Tests that the tooltip shows the values that the API returns.

import { expect } from "vitest";
import { nextResponse, readResponse, type ApiNode } from "./api_response";
import { browserTest, viewsAreShown, withBrowser } from "./chromium";
import { startFixture, STACKS } from "./fixture/server";
import { hostStacks, manyStacks } from "./fixture/stacks";
import { stored } from "./store";
import type { Page } from "playwright-core";

withBrowser();

interface Shown {
  readonly name: string;
  readonly self: string | null;
  readonly total: string | null;
}

async function tooltip(page: Page): Promise<Shown> {
  const facts = page.locator(".tooltip .frame-facts");
  return {
    name: (await page.locator(".tooltip-name").textContent()) ?? "",
    self: await facts.getAttribute("data-self"),
    total: await facts.getAttribute("data-total"),
  };
}

/** Moves the pointer to the middle of a node, whose position is computed from the API's values. */
async function pointAt(page: Page, nodes: readonly ApiNode[], node: ApiNode): Promise<void> {
  const scroller = page.locator(".flame-scroller");
  const row = Number(await scroller.getAttribute("data-row-height"));
  await scroller.evaluate((element, top) => (element.scrollTop = top), Math.max(node.depth * row - 100, 0));
  const { box, scrolled } = await scroller.evaluate((element) => ({
    box: element.getBoundingClientRect().toJSON() as { x: number; y: number },
    scrolled: element.scrollTop,
  }));
  const width = await scroller.evaluate((element) => element.clientWidth);
  const middle = (node.start + Number(node.total) / 2) / Number(nodes[0].total);
  await page.mouse.move(box.x + middle * width, box.y + node.depth * row + row / 2 - scrolled);
}

browserTest("the tooltip shows the values of the API", {}, async ({ page }) => {
  const here = await stored(hostStacks());
  const response = nextResponse(page);
  await page.goto(here.address("&view=flame"));
  const nodes = readResponse(await (await response).text());
  await viewsAreShown(page);
  const wide = nodes.filter((node) => Number(node.total) / Number(nodes[0].total) > 0.004);
  expect(wide.length).toBeGreaterThan(20);
  for (const node of wide) {
    await pointAt(page, nodes, node);
    expect(await tooltip(page)).toEqual({ name: node.name, self: node.self, total: node.total });
  }
});

browserTest("keyboard navigation shows the values of the API", {}, async ({ page }) => {
  const here = await stored(manyStacks(3000));
  const response = nextResponse(page);
  await page.goto(here.address("&view=flame"));
  const nodes = readResponse(await (await response).text());
  await viewsAreShown(page);
  await page.locator("#search").focus();
  while (!(await page.locator(".flame-scroller").evaluate((element) => element === document.activeElement)))
    await page.keyboard.press("Tab");
  let node = nodes[0];
  const seen = new Set<string>();
  for (const key of [
    "ArrowDown",
    "ArrowRight",
    "ArrowRight",
    "ArrowDown",
    "ArrowLeft",
    "ArrowDown",
    "ArrowDown",
    "ArrowUp",
    "ArrowUp",
  ]) {
    await page.keyboard.press(key);
    const level = nodes.filter((other) => other.depth === node.depth).sort((a, b) => a.start - b.start);
    const place = level.indexOf(node);
    if (key === "ArrowDown") node = nodes[node.children[0]] ?? node;
    else if (key === "ArrowUp") node = nodes[node.parent] ?? node;
    else node = level[place + (key === "ArrowRight" ? 1 : -1)] ?? node;
    expect(await tooltip(page)).toEqual({ name: node.name, self: node.self, total: node.total });
    seen.add(node.name);
  }
  expect(seen.size).toBeGreaterThan(3);
});

browserTest("integers beyond 2^53 are shown exactly", {}, async ({ page }) => {
  // This test always uses the fake server: a real one would need weeks of a whole fleet to reach such sums.
  const fixture = await startFixture({ stacks: STACKS.huge() });
  await page.goto(`${fixture.url}/?view=flame`);
  await viewsAreShown(page);
  await page.locator(".flame-scroller").hover({ position: { x: 100, y: 30 } });
  expect(await tooltip(page)).toEqual({ name: "main", self: "0", total: "13510798882111488" });
  await page.locator(".flame-scroller").hover({ position: { x: 100, y: 50 } });
  expect(await tooltip(page)).toMatchObject({ name: "sum", self: "9007199254740991" });
  await fixture.close();
});
