// The menu of a function: keyboard and pointer alike.

import { For, onCleanup, onMount } from "solid-js";

export interface MenuItem {
  readonly label: string;
  readonly hint?: string;
  act(): void;
}

/** A menu at a point of the window; `onClose` is called after a choice, on Escape, and on a click elsewhere. */
export function ContextMenu(props: { title: string; items: readonly MenuItem[]; x: number; y: number; onClose(): void }) {
  let menu!: HTMLDivElement;
  const before = document.activeElement;

  onMount(() => {
    const { width, height } = menu.getBoundingClientRect();
    const left = Math.max(Math.min(props.x, innerWidth - width - 8), 8);
    const top = Math.max(Math.min(props.y, innerHeight - height - 8), 8);
    menu.style.setProperty("transform", `translate(${left}px, ${top}px)`);
    menu.querySelector("button")?.focus();
    const outside = (event: Event): void => {
      if (!menu.contains(event.target as Node)) props.onClose();
    };
    addEventListener("pointerdown", outside, true);
    onCleanup(() => {
      removeEventListener("pointerdown", outside, true);
      if (before instanceof HTMLElement) before.focus({ preventScroll: true });
    });
  });

  function onKeyDown(event: KeyboardEvent): void {
    const buttons = [...menu.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    if (event.key === "ArrowDown") buttons[(at + 1) % buttons.length].focus();
    else if (event.key === "ArrowUp") buttons[(at + buttons.length - 1) % buttons.length].focus();
    else if (event.key === "Escape" || event.key === "Tab") props.onClose();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  return (
    <div class="menu" role="menu" aria-label={props.title} ref={menu} onKeyDown={onKeyDown}>
      <div class="menu-title">{props.title}</div>
      <For each={props.items}>
        {(item) => (
          <button
            type="button"
            role="menuitem"
            onClick={() => {
              props.onClose();
              item.act();
            }}
          >
            <span>{item.label}</span>
            <span class="menu-hint">{item.hint}</span>
          </button>
        )}
      </For>
    </div>
  );
}
