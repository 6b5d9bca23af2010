// Finds a frame's path in a newer response, in which frames that had only addresses may have names.

import { childrenOf, pathTo, type Frame, type ProfileTree } from "./profile_tree";

export interface FoundPath {
  /** The deepest node that was found; the root if none was. */
  readonly node: number;
  /** False if only callers of the frame were found. */
  readonly isWhole: boolean;
}

/** Looks up the path of a node of `before` in `after`. */
export function findPath(before: ProfileTree, node: number, after: ProfileTree): FoundPath {
  let found = 0;
  for (const step of pathTo(before, node).slice(1)) {
    const child = findChild(before, step, after, found);
    if (child < 0) return { node: found, isWhole: false };
    found = child;
  }
  return { node: found, isWhole: true };
}

/** The child of `parent` in `after` that is the same frame as `node` in `before`; -1 if none or several can be. */
function findChild(before: ProfileTree, node: number, after: ProfileTree, parent: number): number {
  const name = nameOf(before, node);
  const children = childrenOf(after, parent);
  const sameName = children.find((child) => nameOf(after, child) === name);
  if (sameName !== undefined) return sameName;
  const { reason, binary } = frameOf(before, node);
  if (reason === undefined) return -1;
  const oldNames = new Set(childrenOf(before, before.parent[node]).map((sibling) => nameOf(before, sibling)));
  const renamed = children.filter(
    (child) => frameOf(after, child).binary === binary && !oldNames.has(nameOf(after, child)),
  );
  if (renamed.length === 1) return renamed[0];
  const sameTotal = renamed.filter((child) => after.total[child] === before.total[node]);
  return sameTotal.length === 1 ? sameTotal[0] : -1;
}

function nameOf(tree: ProfileTree, node: number): string {
  return tree.names[tree.name[node]];
}

/** Facts about a node's function. */
export function frameOf(tree: ProfileTree, node: number): Frame {
  return tree.frames[tree.name[node]] ?? {};
}
