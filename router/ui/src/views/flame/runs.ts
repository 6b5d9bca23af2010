// Rows of the flame graph as runs. A run is one frame, or adjacent frames that are too narrow to draw.
//
// Invariant: every node of the level that overlaps the view is in exactly one run, so that no value is dropped.
// A frame at least a pixel wide is a run of its own.
// Any other run is drawn as one merged block, at least a pixel wide.

import type { ProfileTree } from "../../profile/profile_tree";

/** The visible part of the value axis, and the width in which it is drawn, in CSS pixels. */
export interface View {
  readonly from: number;
  readonly to: number;
  readonly width_px: number;
}

/**
 * Receives one run: the nodes `levelNodes[first .. last)`, which are drawn from `left` to `right`, in pixels. Returns
 * true to end the visit.
 */
export type RunVisitor = (first: number, last: number, left: number, right: number, merged: boolean) => boolean | void;

/** Smallest width of a frame that is drawn by itself, in CSS pixels. A narrower frame is merged with its neighbours. */
export const FRAME_WIDTH_MIN_PX = 1;

/** First index in `[low, high)` of `levelNodes` whose node ends after `value`; `high` if none does. */
export function firstEndingAfter(tree: ProfileTree, value: number, low: number, high: number): number {
  const { levelNodes, start, total } = tree;
  while (low < high) {
    const middle = (low + high) >>> 1;
    const node = levelNodes[middle];
    if (start[node] + total[node] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** First index in `[low, high)` of `levelNodes` whose node starts at or after `value`; `high` if none does. */
export function firstStartingAt(tree: ProfileTree, value: number, low: number, high: number): number {
  const { levelNodes, start } = tree;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (start[levelNodes[middle]] >= value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * Visits the runs of one level from left to right.
 *
 * Time: O(width_px * log nodes).
 */
export function visitRuns(tree: ProfileTree, level: number, view: View, visit: RunVisitor): void {
  const { levelNodes, levelFrom, start, total } = tree;
  const scale = view.width_px / (view.to - view.from);
  const levelEnd = levelFrom[level + 1];
  let at = firstEndingAfter(tree, view.from, levelFrom[level], levelEnd);
  let pendingFirst = -1;
  let pendingLeft = 0;
  let pendingRight = 0;
  while (at < levelEnd) {
    const node = levelNodes[at];
    if (start[node] >= view.to) break;
    const left = (start[node] - view.from) * scale;
    const right = left + total[node] * scale;
    if (right - left >= FRAME_WIDTH_MIN_PX) {
      if (pendingFirst >= 0 && visit(pendingFirst, at, pendingLeft, pendingRight, true)) return;
      pendingFirst = -1;
      if (visit(at, at + 1, left, right, false)) return;
      at++;
      continue;
    }
    // Merges all frames that start within this pixel. Only the last of them can be wide.
    const pixel = Math.max(Math.floor(left), 0);
    let next = firstStartingAt(tree, view.from + (pixel + 1) / scale, at + 1, levelEnd);
    const last = levelNodes[next - 1];
    if (next - 1 > at && total[last] * scale >= FRAME_WIDTH_MIN_PX) next--;
    const lastNode = levelNodes[next - 1];
    const blockRight = Math.max(pixel + 1, (start[lastNode] + total[lastNode] - view.from) * scale);
    if (pendingFirst >= 0 && pixel > pendingRight) {
      // There is a gap before this block: self values of the parents lie there.
      if (visit(pendingFirst, at, pendingLeft, pendingRight, true)) return;
      pendingFirst = -1;
    }
    if (pendingFirst < 0) {
      pendingFirst = at;
      pendingLeft = pixel;
    }
    pendingRight = blockRight;
    at = next;
  }
  if (pendingFirst >= 0) visit(pendingFirst, at, pendingLeft, pendingRight, true);
}

/** The run that is under the pointer. */
export interface Run {
  readonly first: number;
  readonly last: number;
  readonly left: number;
  readonly right: number;
  readonly merged: boolean;
}

/** The run of `level` at `x` pixels; null over a gap. A frame has priority over a block that overlaps it. */
export function runAt(tree: ProfileTree, level: number, view: View, x: number): Run | null {
  if (level < 0 || level >= tree.levels) return null;
  let found: Run | null = null;
  visitRuns(tree, level, view, (first, last, left, right, merged) => {
    if (left > x) return true;
    if (x < right) found = { first, last, left, right, merged };
    return !merged && found !== null;
  });
  return found;
}
