// Small colour samples in legends.

import { createEffect } from "solid-js";

/** Keeps an element's background at a colour; set by script, because the content policy forbids inline styles. */
export function paint(element: HTMLElement, color: () => string): void {
  createEffect(() => element.style.setProperty("background", color()));
}
