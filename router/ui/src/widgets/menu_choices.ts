// Filter of a long menu.

/** Largest number of items shown at once; a longer menu has a field to filter them. */
export const CHOICES_MAX = 40;

/** The first items whose labels contain the typed text, and the number of further ones. */
export function menuChoices<T extends { readonly label: string }>(
  items: readonly T[],
  typed: string,
): { shown: readonly T[]; more: number } {
  const text = typed.toLowerCase();
  const found = items.filter((item) => item.label.toLowerCase().includes(text));
  return { shown: found.slice(0, CHOICES_MAX), more: Math.max(found.length - CHOICES_MAX, 0) };
}
