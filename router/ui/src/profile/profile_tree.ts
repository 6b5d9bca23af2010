// One flame graph as arrays, with the nodes in preorder.
//
// The children of node i follow it; its subtree is the nodes [i, end[i]).
// `start` is the offset of a node on the value axis. Children lie side by side from their parent's start,
// in the server's order (descending total). The remaining width on the right is the parent's self value.
// Values are in the response's unit. `exact` holds the digits of values that a number cannot hold.

import { type WireInteger, wireNumber } from "./wire_integer";

/** Facts about a function besides its name. A fact that the server does not know is absent. */
export interface Frame {
  file?: string;
  line?: number;
  binary?: string;
  type?: string;
  /** Code of the reason why the function has no name. */
  reason?: string;
  /** Index of the reason in `symbolization.unnamed`. */
  unnamed?: number;
}

/** A node as the server sends it: `[parent, name, self, total]`. Parents precede their children. */
export type WireNode = [number, number, WireInteger, WireInteger];

/** Decimal digits of a node's values. They are kept if one of the values is too large for an exact number. */
export interface ExactValues {
  self: string;
  total: string;
}

export interface ProfileTree {
  readonly names: readonly string[];
  readonly frames: readonly Frame[];
  /** Number of nodes, which is the length of each array by node below. */
  readonly size: number;
  readonly parent: Int32Array;
  readonly name: Int32Array;
  readonly depth: Int32Array;
  /** One past the last node of the subtree. */
  readonly end: Int32Array;
  readonly self: Float64Array;
  readonly total: Float64Array;
  readonly start: Float64Array;
  readonly exact: ReadonlyMap<number, ExactValues>;
  /** Nodes of depth d, from left to right: `levelNodes[levelFrom[d] .. levelFrom[d + 1])`. */
  readonly levelFrom: Int32Array;
  readonly levelNodes: Int32Array;
  /** Number of levels, which is one more than the depth of the deepest node. */
  readonly levels: number;
}

/** The error of a response whose nodes do not form a tree. The message names the node. */
export class MalformedTree extends Error {}

/**
 * Builds the tree from the server's flat form.
 *
 * Throws `MalformedTree` if a parent does not precede its child or a name is out of range.
 */
export function buildProfileTree(names: string[], frames: Frame[], nodes: WireNode[]): ProfileTree {
  const size = nodes.length;
  if (size === 0) throw new MalformedTree("the response has no root node");
  const order = preorder(names.length, nodes);
  const position = new Int32Array(size);
  for (let i = 0; i < size; i++) position[order[i]] = i;

  const parent = new Int32Array(size);
  const name = new Int32Array(size);
  const depth = new Int32Array(size);
  const end = new Int32Array(size);
  const self = new Float64Array(size);
  const total = new Float64Array(size);
  const start = new Float64Array(size);
  const exact = new Map<number, ExactValues>();
  // For each node, the start of its next child.
  const cursor = new Float64Array(size);
  let levels = 1;
  for (let i = 0; i < size; i++) {
    // Elements are read by index, because destructuring 100,000 arrays takes as long as the rest of this function.
    const node = nodes[order[i]];
    const above = node[0] < 0 ? -1 : position[node[0]];
    parent[i] = above;
    name[i] = node[1];
    self[i] = wireNumber(node[2]);
    total[i] = wireNumber(node[3]);
    if (typeof node[2] === "string" || typeof node[3] === "string") {
      exact.set(i, { self: String(node[2]), total: String(node[3]) });
    }
    if (above >= 0) {
      depth[i] = depth[above] + 1;
      start[i] = cursor[above];
      cursor[above] += total[i];
      if (depth[i] >= levels) levels = depth[i] + 1;
    }
    cursor[i] = start[i];
  }
  for (let i = size - 1; i >= 0; i--) {
    if (end[i] < i + 1) end[i] = i + 1;
    if (parent[i] >= 0 && end[parent[i]] < end[i]) end[parent[i]] = end[i];
  }
  const { levelFrom, levelNodes } = byLevel(depth, levels);
  return { names, frames, size, parent, name, depth, end, self, total, start, exact, levelFrom, levelNodes, levels };
}

/** Indices into `nodes` in preorder. Siblings keep their order. */
function preorder(nameCount: number, nodes: WireNode[]): Int32Array {
  const size = nodes.length;
  const firstChild = new Int32Array(size).fill(-1);
  const nextSibling = new Int32Array(size).fill(-1);
  // The loop runs backwards and puts each node at the front of its parent's list, so the lists keep the order.
  for (let i = size - 1; i >= 0; i--) {
    const up = nodes[i][0];
    const name = nodes[i][1];
    const isRoot = i === 0 && up === -1;
    if (!isRoot && !(Number.isInteger(up) && up >= 0 && up < i)) {
      throw new MalformedTree(`node ${i} of the response has parent ${up}, which does not precede it`);
    }
    if (!(Number.isInteger(name) && name >= 0 && name < nameCount)) {
      throw new MalformedTree(`node ${i} of the response has name ${name}, but there are ${nameCount} names`);
    }
    if (!isRoot) {
      nextSibling[i] = firstChild[up];
      firstChild[up] = i;
    }
  }
  const order = new Int32Array(size);
  const waiting = new Int32Array(size);
  let depth = 1;
  for (let filled = 0; depth > 0; filled++) {
    const node = waiting[--depth];
    order[filled] = node;
    // The sibling is pushed before the child, so that the whole subtree comes first.
    if (nextSibling[node] >= 0) waiting[depth++] = nextSibling[node];
    if (firstChild[node] >= 0) waiting[depth++] = firstChild[node];
  }
  return order;
}

/** Groups nodes by depth. Each group is ordered from left to right, because the nodes are in preorder. */
function byLevel(depth: Int32Array, levels: number): { levelFrom: Int32Array; levelNodes: Int32Array } {
  const levelFrom = new Int32Array(levels + 1);
  for (const d of depth) levelFrom[d + 1]++;
  for (let d = 0; d < levels; d++) levelFrom[d + 1] += levelFrom[d];
  const next = levelFrom.slice();
  const levelNodes = new Int32Array(depth.length);
  for (let i = 0; i < depth.length; i++) levelNodes[next[depth[i]]++] = i;
  return { levelFrom, levelNodes };
}

/** Exact decimal digits of a node's self and total. */
export function exactValuesOf(tree: ProfileTree, node: number): ExactValues {
  return tree.exact.get(node) ?? { self: String(tree.self[node]), total: String(tree.total[node]) };
}

/** Nodes from the root down to `node`, both included. */
export function pathTo(tree: ProfileTree, node: number): number[] {
  const path: number[] = [];
  for (let at = node; at >= 0; at = tree.parent[at]) path.push(at);
  return path.reverse();
}

/** Children of `node`, from left to right. */
export function childrenOf(tree: ProfileTree, node: number): number[] {
  const children: number[] = [];
  for (let child = node + 1; child < tree.end[node]; child = tree.end[child]) children.push(child);
  return children;
}

/** Depth of the deepest node in the subtree of `node`. */
export function deepestBelow(tree: ProfileTree, node: number): number {
  let deepest = tree.depth[node];
  for (let i = node + 1; i < tree.end[node]; i++) if (tree.depth[i] > deepest) deepest = tree.depth[i];
  return deepest;
}

/** Source location of a frame, `file:line`; "" if it is unknown. */
export function sourceLocation({ file, line }: Frame): string {
  if (file === undefined) return "";
  return line === undefined ? file : `${file}:${line}`;
}

/**
 * The widest frame of a function below `zoom`. If there is none below `zoom`, the widest in the whole tree, or else the
 * root.
 */
export function widestFrame(tree: ProfileTree, functionName: string, zoom: number): number {
  const widestIn = (from: number, to: number): number => {
    let widest = -1;
    for (let node = from; node < to; node++) {
      if (tree.names[tree.name[node]] !== functionName) continue;
      if (widest < 0 || tree.total[node] > tree.total[widest]) widest = node;
    }
    return widest;
  };
  const inside = widestIn(zoom + 1, tree.end[zoom]);
  return inside >= 0 ? inside : Math.max(widestIn(0, tree.size), 0);
}
