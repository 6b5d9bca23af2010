// Frames that match a search, and the value of their stacks.
//
// Invariant: a stack counts once, however many of its frames match.

import type { ProfileTree } from "./profile_tree";

export interface Matches {
  /** 1 for each name that matches; index as in `tree.names`. */
  readonly names: Uint8Array;
  /**
   * Number of matches before each index of `levelNodes`. A range of indices has a match if the numbers at its ends
   * differ.
   */
  readonly before: Int32Array;
  /** Value of the stacks with at least one match, in the response's unit. */
  readonly value: number;
  /** Number of names that match. */
  readonly count: number;
}

/** Compiles a search; a text that is not a valid regular expression is searched literally. */
export function compileSearch(text: string): RegExp {
  try {
    return new RegExp(text, "i");
  } catch (_notARegex) {
    return new RegExp(text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"), "i");
  }
}

/** Finds the names in the whole tree that satisfy a predicate. Time: O(nodes). */
export function findMatches(tree: ProfileTree, isMatch: (name: string) => boolean): Matches {
  const names = new Uint8Array(tree.names.length);
  let count = 0;
  // The root is not a function.
  for (let i = 0; i < names.length; i++) {
    if (i !== tree.name[0] && isMatch(tree.names[i])) {
      names[i] = 1;
      count++;
    }
  }
  let value = 0;
  for (let node = 0; node < tree.size;) {
    if (names[tree.name[node]]) {
      value += tree.total[node];
      node = tree.end[node];
    } else node++;
  }
  const before = new Int32Array(tree.size + 1);
  for (let at = 0; at < tree.size; at++) before[at + 1] = before[at] + names[tree.name[tree.levelNodes[at]]];
  return { names, before, value, count };
}
