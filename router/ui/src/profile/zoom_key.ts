// Short key of a node that stays valid after a reload: the hash of the names on its path.
//
// Node numbers change with every response, and names of 5 kB do not fit into a link.

import type { ProfileTree } from "./profile_tree";

const SEED_LOW = 0x811c9dc5;
const SEED_HIGH = 0x9e3779b9;

/** Two 32-bit hashes of a name, in the style of FNV-1a but with different multipliers. */
function hashName(name: string): [number, number] {
  let low = SEED_LOW;
  let high = SEED_HIGH;
  for (let i = 0; i < name.length; i++) {
    const unit = name.charCodeAt(i);
    low = Math.imul(low ^ unit, 0x01000193);
    high = Math.imul(high ^ unit, 0x85ebca6b);
  }
  return [low, high];
}

/**
 * Mixes one half of the parent's hash with the same half of a name's hash. The shifts keep names from cancelling out.
 */
function step(parentHalf: number, nameHalf: number): number {
  const mixed = Math.imul(parentHalf ^ (nameHalf >>> 15) ^ nameHalf, 0xcc9e2d51);
  return mixed ^ (mixed >>> 13);
}

function text(low: number, high: number): string {
  return (low >>> 0).toString(36) + "-" + (high >>> 0).toString(36);
}

/** The key of `node`; the empty string for the root. */
export function zoomKey(tree: ProfileTree, node: number): string {
  if (node === 0) return "";
  const path: number[] = [];
  for (let at = node; at > 0; at = tree.parent[at]) path.push(at);
  let low = SEED_LOW;
  let high = SEED_HIGH;
  for (const at of path.reverse()) {
    const [nameLow, nameHigh] = hashName(tree.names[tree.name[at]]);
    low = step(low, nameLow);
    high = step(high, nameHigh);
  }
  return text(low, high);
}

/** The node with this key, or -1 if the tree has none. Time: O(nodes). */
export function nodeOfZoomKey(tree: ProfileTree, key: string): number {
  if (key === "") return 0;
  const halves = key.split("-");
  const keyLow = Number.parseInt(halves[0], 36) | 0;
  const keyHigh = Number.parseInt(halves[1] ?? "", 36) | 0;
  const nameHashes = tree.names.map(hashName);
  const low = new Int32Array(tree.size);
  const high = new Int32Array(tree.size);
  low[0] = SEED_LOW;
  high[0] = SEED_HIGH;
  for (let i = 1; i < tree.size; i++) {
    const [nameLow, nameHigh] = nameHashes[tree.name[i]];
    low[i] = step(low[tree.parent[i]], nameLow);
    high[i] = step(high[tree.parent[i]], nameHigh);
    if (low[i] === keyLow && high[i] === keyHigh) return i;
  }
  return -1;
}
