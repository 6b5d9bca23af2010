// The selector as text and as matchers: `{service_name="api", region=~"eu.*"}`.
//
// The text is the truth; chips are its matchers. Printing a parsed selector gives the canonical text,
// and parsing that gives the same matchers again. Braces may be left out while typing.

export type Operator = "=" | "!=" | "=~" | "!~";

export interface Matcher {
  readonly label: string;
  readonly operator: Operator;
  readonly value: string;
}

export interface Selector {
  /** A metric name before the brace, "" if there is none. */
  readonly metric: string;
  readonly matchers: readonly Matcher[];
}

/** What is wrong with a selector text, and where. */
export class SelectorError extends Error {
  constructor(
    message: string,
    /** Offset into the text, in UTF-16 units. */
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

  /** A quoted string, its escapes resolved. */
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
      if (plain === undefined) throw new SelectorError(`\\${escaped ?? ""} is not an escape: write \\\\ for a backslash`, this.at - 2);
      value += plain;
    }
  }
}

const ESCAPES: Readonly<Record<string, string>> = { n: "\n", t: "\t", r: "\r", "\\": "\\", '"': '"', "'": "'" };

/**
 * Reads a selector.
 *
 * Throws `SelectorError` with the place and what to write there.
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
    // `service_name="api"` without braces: what looked like a metric is the first label.
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
      throw new SelectorError(reader.at === text.length ? "close the brace: add }" : "put a comma between matchers", reader.at);
    }
    if (!braced && reader.at < text.length) throw new SelectorError("put a comma between matchers", reader.at);
  }
  reader.skipSpace();
  if (reader.at < text.length) throw new SelectorError("nothing may follow the selector", reader.at);
  return { metric, matchers };
}

function takeMatcher(reader: Reader): Matcher {
  const label = reader.take(LABEL);
  if (label === "") {
    throw new SelectorError(reader.at === reader.text.length ? "close the brace: add }" : "write a label name", reader.at);
  }
  reader.skipSpace();
  const operator = reader.take(OPERATOR) as Operator | "";
  if (operator === "") throw new SelectorError("write one of = != =~ !~ after the label", reader.at);
  reader.skipSpace();
  return { label, operator, value: reader.takeString() };
}

/** A PromQL string literal. */
export function quoted(value: string): string {
  const escaped = value.replace(/[\\"\n\r\t]/g, (c) => (c === "\n" ? "\\n" : c === "\r" ? "\\r" : c === "\t" ? "\\t" : `\\${c}`));
  return `"${escaped}"`;
}

export function printMatcher(matcher: Matcher): string {
  return `${matcher.label}${matcher.operator}${quoted(matcher.value)}`;
}

/** Canonical text of matchers; `{}` is everything. */
export function printMatchers(matchers: readonly Matcher[]): string {
  return `{${matchers.map(printMatcher).join(", ")}}`;
}

/** The selector that the API is asked: the profile type as one more matcher, whatever characters it has. */
export function apiSelector(profileType: string, matchers: readonly Matcher[]): string {
  return printMatchers([{ label: "__profile_type__", operator: "=", value: profileType }, ...matchers]);
}

/** Adds a matcher; one for the same label with an operator that this one makes pointless is replaced. */
export function withMatcher(matchers: readonly Matcher[], added: Matcher): Matcher[] {
  const kept = matchers.filter((m) => {
    if (printMatcher(m) === printMatcher(added)) return false;
    // A series has one value for a label, so a second `=` selects nothing. A stack has many functions.
    const oneValue = !added.label.startsWith("stack_");
    return !(oneValue && added.operator === "=" && m.label === added.label && m.operator === "=");
  });
  return [...kept, added];
}

export function withoutMatcher(matchers: readonly Matcher[], index: number): Matcher[] {
  return matchers.filter((_, i) => i !== index);
}
