import { expect, test } from "vitest";
import { FRAME_WIDTH_MIN_PX, runAt, visitRuns, type View } from "../../src/views/flame/runs";
import type { ProfileTree } from "../../src/profile/profile_tree";
import { randomFrom, randomTree, treeOf } from "../trees";

test("every visible frame is in exactly one run at any zoom", () => {
  const wrong: string[] = [];
  for (const seed of [1, 2, 3, 4, 5, 6]) {
    const tree = randomTree(seed, 30_000, 100);
    const random = randomFrom(seed + 100);
    for (let round = 0; round < 20; round++) {
      const from = round === 0 ? 0 : random() * tree.total[0] * 0.9;
      const view: View = {
        from,
        to: from + (tree.total[0] - from) * Math.max(random() ** 3, 1e-6),
        width_px: 50 + random() * 1500,
      };
      for (let level = 0; level < tree.levels; level++) wrong.push(...faultsOfLevel(tree, level, view));
    }
  }
  expect(wrong.slice(0, 5)).toEqual([]);
});

/** Faults of `visitRuns` on one level. They are found by checking every node of the level. */
function faultsOfLevel(tree: ProfileTree, level: number, view: View): string[] {
  const faults: string[] = [];
  const scale = view.width_px / (view.to - view.from);
  const shown = new Map<number, boolean>();
  visitRuns(tree, level, view, (first, last, left, right, merged) => {
    if (right - left < FRAME_WIDTH_MIN_PX - 1e-6) faults.push(`run ${first} is ${right - left} px wide`);
    for (let at = first; at < last; at++) {
      if (shown.has(at)) faults.push(`index ${at} is drawn twice`);
      shown.set(at, merged);
    }
  });
  for (let at = tree.levelFrom[level]; at < tree.levelFrom[level + 1]; at++) {
    const node = tree.levelNodes[at];
    const wide = tree.total[node] * scale >= FRAME_WIDTH_MIN_PX;
    const inView =
      tree.total[node] > 0 && tree.start[node] + tree.total[node] > view.from && tree.start[node] < view.to;
    if (inView && !shown.has(at)) faults.push(`index ${at} of level ${level} is dropped`);
    if (shown.has(at) && shown.get(at) === wide)
      faults.push(`index ${at} of level ${level} is ${wide ? "merged" : "alone"}`);
  }
  return faults;
}

test("a row of 50,000 narrow frames is a few runs", () => {
  const tree = treeOf([
    "total",
    0,
    ["wide", 50_000],
    ...Array.from({ length: 50_000 }, (_, i): [string, number] => [`s${i % 7}`, 1]),
  ]);
  let runs = 0;
  visitRuns(tree, 1, { from: 0, to: tree.total[0], width_px: 1000 }, () => void runs++);
  expect(runs).toBe(2);
});

test("the frame under the pointer is the one drawn there", () => {
  const tree = treeOf(["total", 10, ["a", 60], ["b", 30]]);
  const view: View = { from: 0, to: 100, width_px: 100 };
  const nameAt = (level: number, x: number): string | null => {
    const run = runAt(tree, level, view, x);
    return run && tree.names[tree.name[tree.levelNodes[run.first]]];
  };
  expect(nameAt(0, 99)).toBe("total");
  expect(nameAt(1, 0)).toBe("a");
  expect(nameAt(1, 59.9)).toBe("a");
  expect(nameAt(1, 60)).toBe("b");
  expect(nameAt(1, 95)).toBe(null);
  expect(nameAt(2, 5)).toBe(null);
  expect(nameAt(-1, 5)).toBe(null);
});

test("a merged block knows its number of frames", () => {
  const tree = treeOf([
    "total",
    0,
    ["wide", 999_000],
    ...Array.from({ length: 1000 }, (_, i): [string, number] => [`s${i}`, 1]),
  ]);
  const run = runAt(tree, 1, { from: 0, to: 1_000_000, width_px: 1000 }, 999.5);
  expect(run).toMatchObject({ merged: true });
  expect((run?.last ?? 0) - (run?.first ?? 0)).toBe(1000);
});
