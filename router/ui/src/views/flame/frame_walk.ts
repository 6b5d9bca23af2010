// Arrow keys in the flame graph. They go from a frame to its neighbour in that direction on the screen.

import { firstEndingAfter } from "./runs";
import type { ProfileTree } from "../../profile/profile_tree";

export type ArrowKey = "ArrowUp" | "ArrowDown" | "ArrowLeft" | "ArrowRight";

export function isArrow(key: string): key is ArrowKey {
  return key === "ArrowUp" || key === "ArrowDown" || key === "ArrowLeft" || key === "ArrowRight";
}

/** Neighbour of `node` in the direction of `key`; `node` itself at an edge. Left and right stay inside `zoom`. */
export function walk(tree: ProfileTree, node: number, key: ArrowKey, flipped: boolean, zoom: number): number {
  if (key === "ArrowLeft" || key === "ArrowRight") return sideways(tree, node, key === "ArrowRight" ? 1 : -1, zoom);
  const outward = (key === "ArrowDown") !== flipped;
  if (!outward) return tree.parent[node] < 0 ? node : tree.parent[node];
  if (tree.depth[node] < tree.depth[zoom]) return towards(tree, node, zoom);
  // The first child is the largest.
  return node + 1 < tree.end[node] ? node + 1 : node;
}

/** The child of `node` on the path down to `below`. */
function towards(tree: ProfileTree, node: number, below: number): number {
  let at = below;
  while (tree.parent[at] !== node && tree.parent[at] >= 0) at = tree.parent[at];
  return tree.parent[at] === node ? at : node;
}

function sideways(tree: ProfileTree, node: number, step: number, zoom: number): number {
  const level = tree.depth[node];
  const { levelFrom, levelNodes } = tree;
  let at = firstEndingAfter(tree, tree.start[node], levelFrom[level], levelFrom[level + 1]);
  // Frames with a total of 0 have the same start, so this loop finds `node` among them.
  while (at < levelFrom[level + 1] - 1 && levelNodes[at] !== node) at++;
  const next = at + step;
  if (next < levelFrom[level] || next >= levelFrom[level + 1]) return node;
  const found = levelNodes[next];
  const isInside = found >= zoom && found < tree.end[zoom];
  return isInside ? found : node;
}
