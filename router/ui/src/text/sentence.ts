// A server's message as a sentence of the web UI.

/** `words` with a capital first letter and a full stop. */
export function sentence(words: string): string {
  const text = words.charAt(0).toUpperCase() + words.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
