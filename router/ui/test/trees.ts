// Trees for tests, written as nested lists.

import { buildProfileTree, type Frame, type ProfileTree, type WireNode } from "../src/profile/profile_tree";

export type Shape = [name: string, self: number, ...children: Shape[]];

/**
 * Builds a tree from its shape. The nodes are in breadth-first order, as in the API. `frames` has facts by function
 * name.
 */
export function treeOf(shape: Shape, frames: Readonly<Record<string, Frame>> = {}): ProfileTree {
  const names: string[] = [];
  const nodes: WireNode[] = [];
  const queue: Array<{ shape: Shape; parent: number }> = [{ shape, parent: -1 }];
  // The queue is read by index, because it grows meanwhile, and `shift` takes long with 50,000 entries.
  for (let at = 0; at < queue.length; at++) {
    const next = queue[at];
    const [name, self, ...children] = next.shape;
    let index = names.indexOf(name);
    if (index < 0) index = names.push(name) - 1;
    const node = nodes.push([next.parent, index, self, totalOf(next.shape)]) - 1;
    for (const child of [...children].sort((a, b) => totalOf(b) - totalOf(a)))
      queue.push({ shape: child, parent: node });
  }
  return buildProfileTree(
    names,
    names.map((name) => frames[name] ?? {}),
    nodes,
  );
}

function totalOf([, self, ...children]: Shape): number {
  return children.reduce((sum, child) => sum + totalOf(child), self);
}

/** Returns a generator of pseudo-random numbers in [0, 1). Equal seeds give equal numbers. */
export function randomFrom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** A random tree of exactly `size` nodes over `nameCount` names. */
export function randomTree(seed: number, size: number, nameCount: number): ProfileTree {
  const random = randomFrom(seed);
  const parents = [-1];
  const selfs = [0];
  const nameOf = [0];
  for (let i = 1; i < size; i++) {
    // Close parents are more likely, which makes the tree both deep and wide.
    parents.push(Math.floor(i * Math.max(random(), random() * random())));
    selfs.push(Math.floor(random() ** 4 * 1000));
    nameOf.push(1 + Math.floor(random() * nameCount));
  }
  const totals = [...selfs];
  for (let i = size - 1; i > 0; i--) totals[parents[i]] += totals[i];
  const names = Array.from({ length: nameCount + 1 }, (_, i) => (i === 0 ? "total" : `f${i}`));
  return buildProfileTree(
    names,
    names.map(() => ({})),
    parents.map((parent, i) => [parent, nameOf[i], selfs[i], totals[i]]),
  );
}
