import { expect, test } from "vitest";
import { sortRows, tabulate, type SortKey } from "../../src/profile/function_table";
import { randomTree, treeOf } from "../trees";

const RECURSIVE = treeOf(["total", 0, ["main", 1, ["walk", 2, ["walk", 3, ["leaf", 4, ["walk", 5]]]], ["walk", 10]]]);

function rowsOf(tree: ReturnType<typeof treeOf>, root: number): Record<string, [number, number]> {
  const table = tabulate(tree, root);
  return Object.fromEntries([...table.rows].map((name) => [tree.names[name], [table.self[name], table.total[name]]]));
}

test("a recursive stack counts once per function", () => {
  expect(rowsOf(RECURSIVE, 0)).toEqual({ main: [1, 25], walk: [20, 24], leaf: [4, 9] });
});

test("a subtree has its own table", () => {
  const leaf = [...RECURSIVE.name].findIndex((name) => RECURSIVE.names[name] === "leaf");
  expect(rowsOf(RECURSIVE, leaf)).toEqual({ leaf: [4, 9], walk: [5, 5] });
});

test("self values add up to the whole, and no total exceeds it", () => {
  for (const seed of [1, 2, 3]) {
    const tree = randomTree(seed, 5000, 40);
    const table = tabulate(tree, 0);
    expect(table.self.reduce((sum, value) => sum + value, 0)).toBe(tree.total[0]);
    for (const name of table.rows) {
      expect(table.total[name]).toBeLessThanOrEqual(tree.total[0]);
      expect(table.total[name]).toBeGreaterThanOrEqual(table.self[name]);
    }
  }
});

test("rows sort by each column both ways, equal values by name", () => {
  const tree = treeOf(["total", 0, ["b", 5], ["a", 5], ["c", 9]]);
  const sorted = (key: SortKey, descending: boolean): string =>
    [...sortRows(tabulate(tree, 0), tree.names, key, descending)].map((name) => tree.names[name]).join("");
  expect([
    sorted("self", true),
    sorted("self", false),
    sorted("total", true),
    sorted("name", false),
    sorted("name", true),
  ]).toEqual(["cab", "abc", "cab", "abc", "cba"]);
});
