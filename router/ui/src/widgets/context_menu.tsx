// A menu at the pointer, for keyboard and mouse.

import { createMemo, createSignal, For, onCleanup, onMount, Show } from "solid-js";
import { useStore } from "../state/app_store";
import { CHOICES_MAX, menuChoices } from "./menu_choices";

export interface MenuItem {
  readonly label: string;
  readonly hint?: string;
  act(): void;
}

interface ContextMenuProps {
  readonly title: string;
  readonly items: readonly MenuItem[];
  /** Position in the window, in CSS pixels. */
  readonly x: number;
  readonly y: number;
  /** Called after a choice, on Escape, and on a click outside. */
  onClose(): void;
}

export function ContextMenu(props: ContextMenuProps) {
  const store = useStore();
  let menu!: HTMLDivElement;
  const focusedBefore = document.activeElement;
  const [typed, setTyped] = createSignal("");
  const choices = createMemo(() => menuChoices(props.items, typed()));

  onMount(() => {
    const { width, height } = menu.getBoundingClientRect();
    const left = Math.max(Math.min(props.x, innerWidth - width - 8), 8);
    const top = Math.max(Math.min(props.y, innerHeight - height - 8), 8);
    menu.style.setProperty("transform", `translate(${left}px, ${top}px)`);
    menu.querySelector<HTMLElement>("input, button")?.focus();
    const outside = (event: Event): void => {
      if (!menu.contains(event.target as Node)) props.onClose();
    };
    addEventListener("pointerdown", outside, true);
    onCleanup(store.hold());
    onCleanup(() => {
      removeEventListener("pointerdown", outside, true);
      if (focusedBefore instanceof HTMLElement) focusedBefore.focus({ preventScroll: true });
    });
  });

  function onKeyDown(event: KeyboardEvent): void {
    const buttons = [...menu.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    if (event.key === "ArrowDown") buttons.at((at + 1) % buttons.length)?.focus();
    else if (event.key === "ArrowUp") buttons.at(Math.max(at, 0) - 1)?.focus();
    else if (event.key === "Enter" && at < 0) buttons.at(0)?.click();
    else if (event.key === "Escape" || event.key === "Tab") props.onClose();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  return (
    <div class="menu" role="menu" aria-label={props.title} ref={menu} onKeyDown={onKeyDown}>
      <div class="menu-title">{props.title}</div>
      <Show when={props.items.length > CHOICES_MAX}>
        <input
          type="text"
          aria-label="Filter the menu"
          placeholder="type to filter"
          autocomplete="off"
          spellcheck={false}
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
      </Show>
      <For each={choices().shown} fallback={<div class="menu-title">no match</div>}>
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
      <Show when={choices().more > 0}>
        <div class="menu-title">{choices().more.toLocaleString("en")} more: type to filter</div>
      </Show>
    </div>
  );
}
