// What of a menu's items is shown: all of them, or those that what was typed is in.

/** Items shown at one time; a menu of more has a field to narrow them. */
export const CHOICES_MAX = 40;

/** The items whose labels contain what was typed, in their order, and how many more there are than are shown. */
export function menuChoices<T extends { readonly label: string }>(items: readonly T[], typed: string): { shown: readonly T[]; more: number } {
  const wanted = typed.toLowerCase();
  const found = items.filter((item) => item.label.toLowerCase().includes(wanted));
  return { shown: found.slice(0, CHOICES_MAX), more: Math.max(found.length - CHOICES_MAX, 0) };
}
