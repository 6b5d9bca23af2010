// JSON whose integers stay exact.
//
// JavaScript numbers are exact to 2^53 - 1; sums of nanoseconds over a fleet are not that small.
// Invariant: an integer literal is returned as a number if a number holds it exactly, and as its own
// digits (a string) otherwise. Text inside strings is never touched.

/** An integer from the server: a number where that is exact, else its decimal digits. */
export type WireInteger = number | string;

// A string literal (skipped whole, so digits in names are safe), or an integer of 16 digits and more
// that is not a piece of a fraction or an exponent.
const STRING_OR_LONG_INTEGER = /"(?:[^"\\]|\\.)*"|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g;

/**
 * Parses `text` as JSON; see the invariant above.
 *
 * Throws `SyntaxError` as `JSON.parse` does.
 */
export function parseExactJson(text: string): unknown {
  // Most answers have no long integer, and the engine's own parser is ten times faster.
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  const quoted = text.replace(STRING_OR_LONG_INTEGER, (literal) =>
    literal.startsWith('"') || Number.isSafeInteger(Number(literal)) ? literal : `"${literal}"`,
  );
  return JSON.parse(quoted);
}

/** The nearest number: for drawing and for per cents, never for showing as exact. */
export function wireNumber(integer: WireInteger): number {
  return typeof integer === "number" ? integer : Number(integer);
}
