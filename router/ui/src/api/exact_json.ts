// JSON parser that keeps integers exact.
//
// JavaScript numbers are exact up to 2^53 - 1; sums of nanoseconds over a fleet can be larger.
// Invariant: an integer literal becomes a number if a number holds it exactly, and a string of its digits otherwise.
// Text inside strings is never changed.

// Matches a string literal, which is skipped as a whole, so that digits in names are safe. Also matches an integer of
// 16 or more digits that is not part of a fraction or an exponent.
const STRING_OR_LONG_INTEGER = /"(?:[^"\\]|\\.)*"|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g;

/**
 * Parses `text` as JSON, with exact integers as described above.
 *
 * Throws `SyntaxError` as `JSON.parse` does.
 */
export function parseExactJson(text: string): unknown {
  // Most responses have no long integer, and for them the built-in parser alone is ten times faster.
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  const quoted = text.replace(STRING_OR_LONG_INTEGER, (literal) =>
    literal.startsWith('"') || Number.isSafeInteger(Number(literal)) ? literal : `"${literal}"`,
  );
  return JSON.parse(quoted);
}
