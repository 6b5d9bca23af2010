// Small colour samples in legends.

import { createEffect } from "solid-js";

/**
 * Sets an element's background to a colour, and follows its changes. Uses a script, because the content policy forbids
 * inline styles.
 */
export function paint(element: HTMLElement, color: () => string): void {
  createEffect(() => element.style.setProperty("background", color()));
}
