import { expect, test } from "vitest";
import { pathTo } from "../../src/profile/profile_tree";
import { nodeOfZoomKey, zoomKey } from "../../src/profile/zoom_key";
import { randomTree, treeOf } from "../trees";

const SMALL = treeOf(["total", 0, ["main", 10, ["parse", 30], ["write", 5, ["sync", 15]]], ["gc", 40]]);

test("a zoom key finds the same path in another tree", () => {
  const other = treeOf(["total", 0, ["gc", 400], ["main", 1, ["write", 50, ["sync", 15]], ["parse", 2]]]);
  const sync = 4;
  expect(SMALL.names[SMALL.name[sync]]).toBe("sync");
  const found = nodeOfZoomKey(other, zoomKey(SMALL, sync));
  expect(pathTo(other, found).map((node) => other.names[other.name[node]])).toEqual(["total", "main", "write", "sync"]);
  expect(nodeOfZoomKey(treeOf(["total", 0, ["sync", 1]]), zoomKey(SMALL, sync))).toBe(-1);
  expect(nodeOfZoomKey(SMALL, "rubbish")).toBe(-1);
  expect(nodeOfZoomKey(SMALL, "")).toBe(0);
});

test("zoom keys of different paths differ", () => {
  const tree = randomTree(9, 20_000, 500);
  const paths = new Set<string>();
  const keys = new Set<string>();
  for (let node = 0; node < tree.size; node += 7) {
    paths.add(
      pathTo(tree, node)
        .map((at) => tree.name[at])
        .join(" "),
    );
    keys.add(zoomKey(tree, node));
  }
  expect(keys.size).toBe(paths.size);
});
