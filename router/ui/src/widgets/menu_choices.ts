// Filter of a long menu.

/** Largest number of items that are shown at once. A longer menu has a field to filter its items. */
export const CHOICES_MAX = 40;

/** The first items whose labels contain the typed text, and the number of further such items. */
export function menuChoices<T extends { readonly label: string }>(
  items: readonly T[],
  typed: string,
): { shown: readonly T[]; more: number } {
  const text = typed.toLowerCase();
  const found = items.filter((item) => item.label.toLowerCase().includes(text));
  return { shown: found.slice(0, CHOICES_MAX), more: Math.max(found.length - CHOICES_MAX, 0) };
}
