import { expect, test } from "vitest";
import { findPath } from "../../src/profile/renamed_path";
import { treeOf } from "../trees";
import type { ProfileTree } from "../../src/profile/profile_tree";

const PYTHON = { binary: "libpython.so" };
const UNNAMED = { ...PYTHON, reason: "converting" };
const FRAMES = { "py+0x1": UNNAMED, "py+0x2": UNNAMED, eval: PYTHON, call: PYTHON, free: { binary: "libc.so" } };

function nodeOf(tree: ProfileTree, name: string): number {
  return tree.name.indexOf(tree.names.indexOf(name));
}

/** Name of the frame that is found for `name` of the first tree, and whether it is the frame itself. */
function found(before: ProfileTree, name: string, after: ProfileTree): [string, boolean] {
  const { node, isWhole } = findPath(before, nodeOf(before, name), after);
  return [after.names[after.name[node]], isWhole];
}

test("a path goes through frames that have names now", () => {
  const before = treeOf(["total", 0, ["py+0x1", 1, ["main", 2, ["py+0x2", 4, ["work", 8]]]]], FRAMES);
  const after = treeOf(["total", 0, ["eval", 1, ["main", 2, ["call", 4, ["work", 8]]]]], FRAMES);
  expect(found(before, "py+0x2", after)).toEqual(["call", true]);
  expect(found(before, "work", after)).toEqual(["work", true]);
});

test("of several new names, the one with the same value is the frame", () => {
  const before = treeOf(["total", 0, ["py+0x1", 5], ["py+0x2", 7]], FRAMES);
  const after = treeOf(["total", 0, ["eval", 5], ["call", 7], ["free", 7]], FRAMES);
  expect([found(before, "py+0x1", after)[0], found(before, "py+0x2", after)[0]]).toEqual(["eval", "call"]);
});

test("where several frames are possible, the deepest caller is found", () => {
  const before = treeOf(["total", 0, ["main", 1, ["py+0x1", 5], ["py+0x2", 7, ["work", 1]]]], FRAMES);
  const after = treeOf(["total", 0, ["main", 1, ["eval", 6], ["call", 6, ["work", 1]]]], FRAMES);
  expect(found(before, "work", after)).toEqual(["main", false]);
  const other = treeOf(["total", 0, ["main", 1, ["free", 12]]], FRAMES);
  expect(found(before, "py+0x1", other)).toEqual(["main", false]);
  // A function that had its name in the older response cannot be the frame.
  const named = treeOf(["total", 0, ["main", 1, ["py+0x1", 5], ["eval", 5]]], FRAMES);
  expect(found(named, "py+0x1", treeOf(["total", 0, ["main", 1, ["eval", 10]]], FRAMES))).toEqual(["main", false]);
});
