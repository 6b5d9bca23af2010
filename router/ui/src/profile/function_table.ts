// The functions of a profile tree, with their self and total values.
//
// Invariant: `total` counts a stack once per function, so that recursion never exceeds 100 per cent.
// The sum of all `self` is the total of the subtree.

import type { ProfileTree } from "./profile_tree";

export type SortKey = "name" | "self" | "total";

export interface FunctionTable {
  /** Indices into `tree.names`, one per row, unsorted. */
  readonly rows: Int32Array;
  /** Values by name index, in the response's unit. */
  readonly self: Float64Array;
  readonly total: Float64Array;
}

/** Sums the subtree of `root` by function. The root node of the whole tree is not a function. */
export function tabulate(tree: ProfileTree, root: number): FunctionTable {
  const self = new Float64Array(tree.names.length);
  const total = new Float64Array(tree.names.length);
  const seen = new Uint8Array(tree.names.length);
  // Number of occurrences of each name on the path from `root` to the current node.
  const onPath = new Int32Array(tree.names.length);
  const path: number[] = [];
  for (let node = root; node < tree.end[root]; node++) {
    while (path.length > 0 && tree.depth[path[path.length - 1]] >= tree.depth[node]) {
      onPath[tree.name[path.pop() as number]]--;
    }
    const name = tree.name[node];
    if (onPath[name] === 0) total[name] += tree.total[node];
    self[name] += tree.self[node];
    if (node !== 0) seen[name] = 1;
    onPath[name]++;
    path.push(node);
  }
  const rows: number[] = [];
  for (let name = 0; name < seen.length; name++) if (seen[name]) rows.push(name);
  return { rows: Int32Array.from(rows), self, total };
}

/** Rows sorted by `key`. Rows with equal values are sorted by name, so that the order is the same on every load. */
export function sortRows(
  table: FunctionTable,
  names: readonly string[],
  key: SortKey,
  descending: boolean,
): Int32Array {
  const sign = descending ? -1 : 1;
  // Compares code units. Comparing by the rules of a locale takes a hundred times as long, and does not help with
  // symbols.
  const byName = (a: number, b: number): number => (names[a] < names[b] ? -1 : names[a] > names[b] ? 1 : a - b);
  const rows = table.rows.slice();
  if (key === "name") return rows.sort((a, b) => sign * byName(a, b));
  const values = key === "self" ? table.self : table.total;
  return rows.sort((a, b) => sign * (values[a] - values[b]) || byName(a, b));
}
