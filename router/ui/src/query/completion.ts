// What the cursor stands in: a label name, an operator, or a value, of a selector being typed.
//
// Works on unfinished text, so it does not parse: it walks the matchers before the cursor.

import type { ProfileTree } from "../profile/profile_tree";
import { parseSelector, SelectorError, type Matcher } from "./matchers";

export type CompletionPlace =
  | { readonly kind: "name"; readonly from: number; readonly to: number; readonly typed: string }
  | { readonly kind: "value"; readonly from: number; readonly to: number; readonly typed: string; readonly label: string }
  | null;

/** Where a completion would go at `cursor`; null where there is nothing to complete. */
export function completionPlace(text: string, cursor: number): CompletionPlace {
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
      // Between matchers, or in a name.
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
      // An open quote reaches to the next comma or brace, so that what follows is not swallowed.
      const to = closed >= 0 ? closed + 1 : skip(text, valueStart + 1, /[^,}]/);
      return { kind: "value", label, from: valueStart, to: Math.max(to, cursor), typed: text.slice(valueStart + 1, cursor) };
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

/** Labels that look into the stacks; the server has them on no series, so the page offers them. */
export const STACK_LABELS = [
  "stack_function", "leaf_function", "stack_file", "leaf_file", "stack_binary", "leaf_binary", "stack_frame_type", "leaf_frame_type",
] as const;

/** Values of a stack label in a picture, the heaviest first; null for any other label. */
export function stackLabelValues(label: string, tree: ProfileTree | undefined): string[] | null {
  if (!(STACK_LABELS as readonly string[]).includes(label)) return null;
  if (tree === undefined) return [];
  const part = label.slice(label.indexOf("_") + 1);
  const heaviest = new Map<string, number>();
  for (let node = 1; node < tree.size; node++) {
    const name = tree.name[node];
    const frame = tree.frames[name];
    const value = part === "function" ? tree.names[name] : part === "file" ? frame?.file : part === "binary" ? frame?.binary : frame?.type;
    if (value !== undefined) heaviest.set(value, Math.max(heaviest.get(value) ?? 0, tree.total[node]));
  }
  return [...heaviest].sort((a, b) => b[1] - a[1]).map(([value]) => value);
}

/** Most suggestions shown at once. */
export const SUGGESTIONS_MAX = 50;

/** Candidates that contain what was typed, those that begin with it first. */
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

/** The text and cursor after taking a suggestion at `place`. */
export function applyCompletion(
  text: string,
  place: NonNullable<CompletionPlace>,
  chosen: string,
  quote: (value: string) => string,
): { text: string; cursor: number } {
  const after = text.slice(place.to);
  // A name is followed by its operator and an open value, unless they are there already.
  const inserted =
    place.kind === "value" ? quote(chosen) : /^\s*[=!]/.test(after) ? chosen : `${chosen}=""`;
  const cursor = place.from + inserted.length - (place.kind === "name" && inserted.endsWith('""') ? 1 : 0);
  return { text: text.slice(0, place.from) + inserted + after, cursor };
}

const WHOLE_MATCHER = /[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"/g;

/** The finished matchers of a text, without the one being typed at `place`: what narrows its candidates. */
export function otherMatchers(text: string, place: NonNullable<CompletionPlace>): Matcher[] {
  const others: Matcher[] = [];
  for (const found of text.matchAll(WHOLE_MATCHER)) {
    const isTyped = found.index < place.to && found.index + found[0].length > place.from;
    if (isTyped) continue;
    try {
      others.push(...parseSelector(`{${found[0]}}`).matchers);
    } catch (error) {
      // An escape that is still being typed: the matcher narrows nothing yet.
      if (!(error instanceof SelectorError)) throw error;
    }
  }
  return others;
}
