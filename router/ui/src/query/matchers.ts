// The selector as text and as matchers: `{service_name="api", region=~"eu.*"}`.
//
// Printing a parsed selector gives its canonical text, and parsing that text gives the same matchers again.
// The braces are optional in input.

export type Operator = "=" | "!=" | "=~" | "!~";

export interface Matcher {
  readonly label: string;
  readonly operator: Operator;
  readonly value: string;
}

export interface Selector {
  /** Metric name before the brace; "" if there is none. */
  readonly metric: string;
  readonly matchers: readonly Matcher[];
}

/** A syntax error in a selector. The message says what to write instead. */
export class SelectorError extends Error {
  constructor(
    message: string,
    /** Position of the error in the text, in UTF-16 units. */
    readonly at: number,
  ) {
    super(`at character ${at + 1}: ${message}`);
  }
}

const LABEL = /[a-zA-Z_][a-zA-Z0-9_]*/y;
const METRIC = /[a-zA-Z_:][a-zA-Z0-9_:]*/y;
const OPERATOR = /=~|!~|!=|=/y;
const SPACE = /\s*/y;

class Reader {
  at = 0;
  constructor(readonly text: string) {}

  take(pattern: RegExp): string {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text)?.[0] ?? "";
    this.at += found.length;
    return found;
  }

  skipSpace(): void {
    this.take(SPACE);
  }

  takeCharacter(character: string): boolean {
    if (this.text[this.at] !== character) return false;
    this.at++;
    return true;
  }

  /** Reads a quoted string and resolves its escapes. */
  takeString(): string {
    const quote = this.text[this.at];
    if (quote !== '"' && quote !== "'" && quote !== "`") throw new SelectorError("put the value in quotes", this.at);
    const opened = this.at++;
    let value = "";
    for (;;) {
      const character = this.text[this.at++];
      if (character === undefined) throw new SelectorError(`this quote is not closed: add ${quote}`, opened);
      if (character === quote) return value;
      if (character !== "\\" || quote === "`") {
        value += character;
        continue;
      }
      const escaped = this.text[this.at++];
      const plain = escaped === undefined ? undefined : ESCAPES[escaped];
      if (plain === undefined)
        throw new SelectorError(`\\${escaped ?? ""} is not an escape: write \\\\ for a backslash`, this.at - 2);
      value += plain;
    }
  }
}

const ESCAPES: Readonly<Record<string, string>> = { n: "\n", t: "\t", r: "\r", "\\": "\\", '"': '"', "'": "'" };

/**
 * Parses a selector.
 *
 * Throws `SelectorError`, which says where the error is and what to write there.
 */
export function parseSelector(text: string): Selector {
  const reader = new Reader(text);
  reader.skipSpace();
  let metric = "";
  const beforeMetric = reader.at;
  metric = reader.take(METRIC);
  reader.skipSpace();
  const braced = reader.takeCharacter("{");
  if (!braced) {
    // In `service_name="api"` without braces, the word is a label and not a metric name.
    OPERATOR.lastIndex = reader.at;
    if (OPERATOR.test(text)) {
      reader.at = beforeMetric;
      metric = "";
    } else if (reader.at < text.length) {
      throw new SelectorError('write {label="value"}', reader.at);
    } else return { metric, matchers: [] };
  }
  const matchers: Matcher[] = [];
  for (;;) {
    reader.skipSpace();
    if (braced && reader.takeCharacter("}")) break;
    if (!braced && reader.at === text.length) break;
    matchers.push(takeMatcher(reader));
    reader.skipSpace();
    if (reader.takeCharacter(",")) continue;
    if (braced && reader.text[reader.at] !== "}") {
      throw new SelectorError(
        reader.at === text.length ? "close the brace: add }" : "put a comma between matchers",
        reader.at,
      );
    }
    if (!braced && reader.at < text.length) throw new SelectorError("put a comma between matchers", reader.at);
  }
  reader.skipSpace();
  if (reader.at < text.length) throw new SelectorError("remove the text after the selector", reader.at);
  return { metric, matchers };
}

function takeMatcher(reader: Reader): Matcher {
  const label = reader.take(LABEL);
  if (label === "") {
    throw new SelectorError(
      reader.at === reader.text.length ? "close the brace: add }" : "write a label name",
      reader.at,
    );
  }
  reader.skipSpace();
  const operator = reader.take(OPERATOR) as Operator | "";
  if (operator === "") throw new SelectorError("write one of = != =~ !~ after the label", reader.at);
  reader.skipSpace();
  return { label, operator, value: reader.takeString() };
}

/** Returns the value as a string literal of PromQL. */
export function quoted(value: string): string {
  const escaped = value.replace(/[\\"\n\r\t]/g, (c) =>
    c === "\n" ? "\\n" : c === "\r" ? "\\r" : c === "\t" ? "\\t" : `\\${c}`,
  );
  return `"${escaped}"`;
}

/** Text of one matcher. */
export function printMatcher(matcher: Matcher): string {
  return `${matcher.label}${matcher.operator}${quoted(matcher.value)}`;
}

/** Canonical text of matchers; `{}` selects everything. */
export function printMatchers(matchers: readonly Matcher[]): string {
  return `{${matchers.map(printMatcher).join(", ")}}`;
}

/** Selector for the API. The profile type becomes a matcher, so it may contain any characters. */
export function apiSelector(profileType: string, matchers: readonly Matcher[]): string {
  return printMatchers([{ label: "__profile_type__", operator: "=", value: profileType }, ...matchers]);
}

/** Adds a matcher. A second `=` for the same label of series replaces the first one. */
export function withMatcher(matchers: readonly Matcher[], added: Matcher): Matcher[] {
  const kept = matchers.filter((m) => {
    if (printMatcher(m) === printMatcher(added)) return false;
    // A series has one value per label, so two different `=` would match nothing. But a stack has many functions.
    const oneValue = !added.label.startsWith("stack_");
    return !(oneValue && added.operator === "=" && m.label === added.label && m.operator === "=");
  });
  return [...kept, added];
}

/** The matchers without the one at `index`. */
export function withoutMatcher(matchers: readonly Matcher[], index: number): Matcher[] {
  return matchers.filter((_, i) => i !== index);
}
