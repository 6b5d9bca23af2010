// Completion of a selector while it is typed. Completes a label name or a value at the cursor.
//
// The text is unfinished, so it cannot be parsed. Instead, this module walks over the matchers before the cursor.

import type { ProfileTree } from "../profile/profile_tree";
import { parseSelector, SelectorError, type Matcher } from "./matchers";

export type CompletionRange =
  | { readonly kind: "name"; readonly from: number; readonly to: number; readonly typed: string }
  | {
      readonly kind: "value";
      readonly from: number;
      readonly to: number;
      readonly typed: string;
      readonly label: string;
    }
  | null;

/** Range of the text that a completion at `cursor` would replace; null if there is nothing to complete. */
export function completionRange(text: string, cursor: number): CompletionRange {
  let at = 0;
  const brace = text.indexOf("{");
  const firstQuote = text.search(/["'`]/);
  if (brace >= 0 && (firstQuote < 0 || brace < firstQuote)) {
    if (cursor <= brace) return null;
    at = brace + 1;
  }
  for (;;) {
    at = skip(text, at, /[\s,]/);
    const nameEnd = skip(text, at, /[a-zA-Z0-9_]/);
    if (cursor <= nameEnd) {
      // The cursor is between matchers, or in a name.
      const from = Math.min(at, cursor);
      return { kind: "name", from, to: Math.max(nameEnd, cursor), typed: text.slice(from, cursor) };
    }
    const label = text.slice(at, nameEnd);
    const operatorEnd = skip(text, skip(text, nameEnd, /\s/), /[=!~]/);
    const valueStart = skip(text, operatorEnd, /\s/);
    if (label === "" || operatorEnd === nameEnd) return null;
    if (cursor < operatorEnd) return null;
    const quote = text[valueStart];
    if (quote === undefined || !/["'`]/.test(quote)) {
      const bareEnd = skip(text, valueStart, /[^\s,}]/);
      if (cursor > bareEnd) {
        at = bareEnd;
        if (at >= text.length || text[at] === "}") return null;
        continue;
      }
      return { kind: "value", label, from: valueStart, to: bareEnd, typed: text.slice(valueStart, cursor) };
    }
    if (cursor <= valueStart) return null;
    const closed = closingQuote(text, valueStart, quote);
    if (closed < 0 || cursor <= closed) {
      // An open quote ends at the next comma or brace, so that the completion keeps the matchers after it.
      const to = closed >= 0 ? closed + 1 : skip(text, valueStart + 1, /[^,}]/);
      return {
        kind: "value",
        label,
        from: valueStart,
        to: Math.max(to, cursor),
        typed: text.slice(valueStart + 1, cursor),
      };
    }
    at = closed + 1;
    const next = skip(text, at, /\s/);
    if (text[next] !== ",") return null;
    if (cursor <= next) return null;
    at = next + 1;
  }
}

function skip(text: string, at: number, pattern: RegExp): number {
  while (at < text.length && pattern.test(text[at])) at++;
  return at;
}

function closingQuote(text: string, opened: number, quote: string): number {
  for (let at = opened + 1; at < text.length; at++) {
    if (text[at] === "\\" && quote !== "`") at++;
    else if (text[at] === quote) return at;
  }
  return -1;
}

/** Labels that select stacks by their frames. The server does not list them, because no series has them. */
export const STACK_LABELS = [
  "stack_function",
  "leaf_function",
  "stack_file",
  "leaf_file",
  "stack_binary",
  "leaf_binary",
  "stack_frame_type",
  "leaf_frame_type",
] as const;

/** Values of a label of stacks in the shown tree, the largest total first; null for a label of another kind. */
export function stackLabelValues(label: string, tree: ProfileTree | undefined): string[] | null {
  if (!(STACK_LABELS as readonly string[]).includes(label)) return null;
  if (tree === undefined) return [];
  const part = label.slice(label.indexOf("_") + 1);
  const largest = new Map<string, number>();
  for (let node = 1; node < tree.size; node++) {
    const name = tree.name[node];
    const frame = tree.frames[name];
    const value =
      part === "function"
        ? tree.names[name]
        : part === "file"
          ? frame?.file
          : part === "binary"
            ? frame?.binary
            : frame?.type;
    if (value !== undefined) largest.set(value, Math.max(largest.get(value) ?? 0, tree.total[node]));
  }
  return [...largest].sort((a, b) => b[1] - a[1]).map(([value]) => value);
}

/** Largest number of suggestions that are shown at once. */
export const SUGGESTIONS_MAX = 50;

/** Candidates that contain the typed text; those that begin with it come first. */
export function rankCandidates(candidates: readonly string[], typed: string): string[] {
  const wanted = typed.toLowerCase();
  const begins: string[] = [];
  const contains: string[] = [];
  for (const candidate of candidates) {
    const at = candidate.toLowerCase().indexOf(wanted);
    if (at === 0) begins.push(candidate);
    else if (at > 0) contains.push(candidate);
  }
  return [...begins, ...contains].slice(0, SUGGESTIONS_MAX);
}

/** Returns the text and the cursor after `chosen` has replaced `range`. */
export function applyCompletion(
  text: string,
  range: NonNullable<CompletionRange>,
  chosen: string,
  quote: (value: string) => string,
): { text: string; cursor: number } {
  const after = text.slice(range.to);
  // A name gets an operator and empty quotes, unless an operator follows already.
  const inserted = range.kind === "value" ? quote(chosen) : /^\s*[=!]/.test(after) ? chosen : `${chosen}=""`;
  const cursor = range.from + inserted.length - (range.kind === "name" && inserted.endsWith('""') ? 1 : 0);
  return { text: text.slice(0, range.from) + inserted + after, cursor };
}

const WHOLE_MATCHER = /[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"/g;

/** The complete matchers of a text, without the one that is typed at `range`. They restrict the candidates for it. */
export function otherMatchers(text: string, range: NonNullable<CompletionRange>): Matcher[] {
  const others: Matcher[] = [];
  for (const found of text.matchAll(WHOLE_MATCHER)) {
    const isTyped = found.index < range.to && found.index + found[0].length > range.from;
    if (isTyped) continue;
    try {
      others.push(...parseSelector(`{${found[0]}}`).matchers);
    } catch (error) {
      // The escape is unfinished, so the matcher does not restrict anything yet.
      if (!(error instanceof SelectorError)) throw error;
    }
  }
  return others;
}
