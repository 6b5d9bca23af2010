// The flame graph as the API returns it, read without the web UI's code.

import type { Page, Response } from "playwright-core";

export interface ApiNode {
  readonly name: string;
  readonly parent: number;
  readonly children: number[];
  readonly self: string;
  readonly total: string;
  /** Offset of the node on the value axis. */
  start: number;
  readonly depth: number;
}

/** The next flame graph that the web UI receives. */
export function nextResponse(page: Page): Promise<Response> {
  return page.waitForResponse(
    (response) =>
      response.url().includes("/api/v1/flamegraph?") && response.ok() && !response.url().includes("format="),
  );
}

/** Nodes of a response; integers are strings of digits, so that any size is exact. */
export function readResponse(text: string): ApiNode[] {
  // The nodes contain only integers, all of which are quoted here.
  const [, head, nodes, tail] = /^([\s\S]*"nodes":\s*)(\[[[\]\d,\s-]*\])([\s\S]*)$/.exec(text) ?? [];
  if (nodes === undefined) throw new Error("no nodes in the response");
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
