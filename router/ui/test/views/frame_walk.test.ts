import { expect, test } from "vitest";
import { walk, type ArrowKey } from "../../src/views/flame/frame_walk";
import { treeOf } from "../trees";

const TREE = treeOf(["total", 0, ["main", 5, ["parse", 30, ["number", 9]], ["write", 5]], ["gc", 40, ["mark", 3]]]);
const nodeNamed = (name: string): number => [...TREE.name].findIndex((index) => TREE.names[index] === name);
const walked = (from: string, key: ArrowKey, flipped = false, zoom = "total"): string =>
  TREE.names[TREE.name[walk(TREE, nodeNamed(from), key, flipped, nodeNamed(zoom))]];

test("arrow keys move in their direction", () => {
  expect(walked("total", "ArrowDown")).toBe("main");
  expect(walked("main", "ArrowDown")).toBe("parse");
  expect(walked("parse", "ArrowUp")).toBe("main");
  expect(walked("main", "ArrowRight")).toBe("gc");
  expect(walked("write", "ArrowRight")).toBe("mark");
  expect(walked("gc", "ArrowLeft")).toBe("main");
});

test("arrow keys stay at an edge", () => {
  expect(walked("total", "ArrowUp")).toBe("total");
  expect(walked("number", "ArrowDown")).toBe("number");
  expect(walked("main", "ArrowLeft")).toBe("main");
});

test("a flipped graph swaps up and down", () => {
  expect(walked("main", "ArrowUp", true)).toBe("parse");
  expect(walked("parse", "ArrowDown", true)).toBe("main");
});

test("left and right stay inside the zoom, and down leads to it", () => {
  expect(walked("write", "ArrowRight", false, "main")).toBe("write");
  expect(walked("total", "ArrowDown", false, "gc")).toBe("gc");
  expect(walked("parse", "ArrowRight", false, "main")).toBe("write");
});
