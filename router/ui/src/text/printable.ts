// Names come from outside: they may hold control characters, and marks that turn text around.

// C0 and C1 controls, and the bidirectional marks, embeddings, overrides and isolates.
const UNPRINTABLE = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** The name with everything that could disturb the text around it replaced by U+FFFD. */
export function printable(name: string): string {
  return name.replace(UNPRINTABLE, "\ufffd");
}

/** Longest name shown whole in a tooltip, in UTF-16 units; a longer one can be copied. */
export const SHOWN_LENGTH_MAX = 1200;

/** Beginning and end of a long name, with what was left out said in between. */
export function shortened(name: string): string {
  if (name.length <= SHOWN_LENGTH_MAX) return name;
  const tail = 200;
  const head = SHOWN_LENGTH_MAX - tail;
  return `${name.slice(0, head)} … ${name.length - SHOWN_LENGTH_MAX} more characters … ${name.slice(-tail)}`;
}
