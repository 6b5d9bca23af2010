import { expect, test } from "vitest";
import {
  buildProfileTree,
  childrenOf,
  deepestBelow,
  exactValuesOf,
  MalformedTree,
  pathTo,
  widestFrame,
} from "../../src/profile/profile_tree";
import { randomTree, treeOf } from "../trees";

const SMALL = treeOf(["total", 0, ["main", 10, ["parse", 30], ["write", 5, ["sync", 15]]], ["gc", 40]]);

test("children lie side by side in the server's order", () => {
  const laidOut = Array.from({ length: SMALL.size }, (_, i) => [
    SMALL.names[SMALL.name[i]],
    SMALL.start[i],
    SMALL.total[i],
  ]);
  expect(laidOut).toEqual([
    ["total", 0, 100],
    ["main", 0, 60],
    ["parse", 0, 30],
    ["write", 30, 20],
    ["sync", 30, 15],
    ["gc", 60, 40],
  ]);
});

test("a subtree is a range of nodes, and a level is sorted", () => {
  for (const seed of [1, 2, 3, 4, 5]) {
    const tree = randomTree(seed, 2000, 50);
    for (let i = 0; i < tree.size; i++) {
      for (const child of childrenOf(tree, i)) {
        expect(tree.parent[child]).toBe(i);
        expect(tree.end[child]).toBeLessThanOrEqual(tree.end[i]);
        expect(tree.start[child] + tree.total[child]).toBeLessThanOrEqual(tree.start[i] + tree.total[i]);
      }
    }
    let seen = 0;
    for (let level = 0; level < tree.levels; level++) {
      for (let at = tree.levelFrom[level]; at < tree.levelFrom[level + 1]; at++, seen++) {
        expect(tree.depth[tree.levelNodes[at]]).toBe(level);
        if (at > tree.levelFrom[level])
          expect(tree.start[tree.levelNodes[at]]).toBeGreaterThanOrEqual(tree.start[tree.levelNodes[at - 1]]);
      }
    }
    expect(seen).toBe(tree.size);
  }
});

test("a stack of 100,000 frames needs no recursion", () => {
  const nodes = Array.from({ length: 100_000 }, (_, i): [number, number, number, number] => [i - 1, 0, 0, 1]);
  const tree = buildProfileTree(["a"], [{}], nodes);
  expect(tree.levels).toBe(100_000);
  expect(deepestBelow(tree, 0)).toBe(99_999);
  expect(pathTo(tree, 99_999)).toHaveLength(100_000);
});

test("nodes that do not form a tree are refused with their number", () => {
  expect(() => buildProfileTree(["a"], [{}], [])).toThrow(MalformedTree);
  expect(() =>
    buildProfileTree(
      ["a"],
      [{}],
      [
        [-1, 0, 0, 1],
        [1, 0, 1, 1],
      ],
    ),
  ).toThrow(/node 1 .* parent 1/);
  expect(() =>
    buildProfileTree(
      ["a"],
      [{}],
      [
        [-1, 0, 0, 1],
        [-1, 0, 1, 1],
      ],
    ),
  ).toThrow(/node 1 .* parent -1/);
  expect(() =>
    buildProfileTree(
      ["a"],
      [{}],
      [
        [-1, 0, 0, 1],
        [0, 1, 1, 1],
      ],
    ),
  ).toThrow(/node 1 .* name 1/);
});

test("exact digits are kept beside the rounded numbers", () => {
  const tree = buildProfileTree(
    ["total", "a"],
    [{}, {}],
    [
      [-1, 0, 0, "9007199254740993"],
      [0, 1, "9007199254740993", "9007199254740993"],
    ],
  );
  expect(exactValuesOf(tree, 1)).toEqual({ self: "9007199254740993", total: "9007199254740993" });
  expect(tree.total[1]).toBe(9007199254740992);
  expect(exactValuesOf(SMALL, 1)).toEqual({ self: "10", total: "60" });
});

test("the widest frame of a function is looked up inside the zoom first", () => {
  const tree = treeOf(["total", 0, ["main", 1, ["walk", 2]], ["gc", 50, ["walk", 40]]]);
  const nodeNamed = (name: string): number => [...tree.name].findIndex((index) => tree.names[index] === name);
  expect(pathTo(tree, widestFrame(tree, "walk", 0)).map((node) => tree.names[tree.name[node]])).toContain("gc");
  expect(pathTo(tree, widestFrame(tree, "walk", nodeNamed("main"))).at(-2)).toBe(nodeNamed("main"));
  expect(widestFrame(tree, "gc", nodeNamed("main"))).toBe(nodeNamed("gc"));
  expect(widestFrame(tree, "missing", 0)).toBe(0);
});
