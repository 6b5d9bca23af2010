import { expect, test } from "vitest";
import { zoomKey } from "../../src/profile/zoom_key";
import { renamedPosition } from "../../src/state/position";
import { treeOf } from "../trees";

const FRAMES = { "py+0x1": { binary: "py", reason: "converting" }, eval: { binary: "py" } };
const BEFORE = treeOf(["total", 0, ["main", 1, ["py+0x1", 4, ["work", 8]]], ["idle", 2]], FRAMES);
const AFTER = treeOf(["total", 0, ["main", 1, ["eval", 4, ["work", 8]]], ["idle", 2]], FRAMES);
const before = { tree: BEFORE, pendingFiles: ["py"] };
const keyOf = (tree: typeof BEFORE, name: string) => zoomKey(tree, tree.name.indexOf(tree.names.indexOf(name)));

test("the zoom and the marked function follow a frame to its name", () => {
  const position = { zoom: keyOf(BEFORE, "work"), pick: "py+0x1" };
  expect(renamedPosition(position, before, { tree: AFTER })).toEqual({ zoom: keyOf(AFTER, "work"), pick: "eval" });
});

test("a marked address that no single function replaces is not marked any more", () => {
  const other = treeOf(["total", 0, ["main", 13], ["idle", 2]], FRAMES);
  const position = { zoom: keyOf(BEFORE, "py+0x1"), pick: "py+0x1" };
  expect(renamedPosition(position, before, { tree: other })).toEqual({ zoom: keyOf(other, "main"), pick: "" });
});

test("a position without new names stays, also where it has no samples", () => {
  const position = { zoom: keyOf(BEFORE, "idle"), pick: "idle" };
  const without = { tree: treeOf(["total", 0, ["main", 1, ["eval", 12]]], FRAMES) };
  expect(renamedPosition(position, before, without)).toEqual({});
  expect(renamedPosition(position, undefined, without)).toEqual({});
  expect(renamedPosition({ zoom: "", pick: "" }, before, { tree: AFTER })).toEqual({});
  const unnamed = { zoom: keyOf(BEFORE, "work"), pick: "py+0x1" };
  expect(renamedPosition(unnamed, { ...before, pendingFiles: [] }, { tree: AFTER })).toEqual({});
});
