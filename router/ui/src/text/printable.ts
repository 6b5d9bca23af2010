// Names from outside, made safe to show: they may hold control characters and bidirectional marks.

// C0 and C1 controls, and the bidirectional marks, embeddings, overrides and isolates.
const UNPRINTABLE = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** The name, with U+FFFD in place of every character that could disturb the text around it. */
export function printable(name: string): string {
  return name.replace(UNPRINTABLE, "\ufffd");
}

/** Length of the longest name that a tooltip shows in full, in UTF-16 units. */
export const SHOWN_LENGTH_MAX = 1200;

/** A long name, shortened to its beginning, the number of omitted characters, and its end. */
export function shortened(name: string): string {
  if (name.length <= SHOWN_LENGTH_MAX) return name;
  const tail = 200;
  const head = SHOWN_LENGTH_MAX - tail;
  return `${name.slice(0, head)} … ${name.length - SHOWN_LENGTH_MAX} more characters … ${name.slice(-tail)}`;
}
