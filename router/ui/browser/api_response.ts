// The flame graph as the API answers it, read without any of the page's code.

import type { Page, Response } from "playwright-core";

export interface ApiNode {
  readonly name: string;
  readonly parent: number;
  readonly children: number[];
  readonly self: string;
  readonly total: string;
  /** Where it begins on the value axis. */
  start: number;
  readonly depth: number;
}

/** The next flame graph that the page is given. */
export function nextResponse(page: Page): Promise<Response> {
  return page.waitForResponse(
    (response) =>
      response.url().includes("/api/v1/flamegraph?") && response.ok() && !response.url().includes("format="),
  );
}

/** Nodes of an answer's text; integers as their digits, so of any size. */
export function readResponse(text: string): ApiNode[] {
  // Nodes hold nothing but integers: quote them all.
  const [, head, nodes, tail] = /^([\s\S]*"nodes":\s*)(\[[[\]\d,\s-]*\])([\s\S]*)$/.exec(text) ?? [];
  if (nodes === undefined) throw new Error("no nodes in the answer");
  const parsed = JSON.parse(`${head}${nodes.replace(/-?\d+/g, '"$&"')}${tail}`) as {
    names: string[];
    nodes: string[][];
  };
  const read: ApiNode[] = [];
  for (const [i, [parent, name, self, total]] of parsed.nodes.entries()) {
    const up = Number(parent);
    const above = up >= 0 ? read[up] : undefined;
    let start = 0;
    if (above !== undefined) {
      const left = above.children.at(-1);
      start = left === undefined ? above.start : read[left].start + Number(read[left].total);
      above.children.push(i);
    }
    read.push({
      name: parsed.names[Number(name)],
      parent: up,
      children: [],
      self,
      total,
      start,
      depth: above === undefined ? 0 : above.depth + 1,
    });
  }
  return read;
}
