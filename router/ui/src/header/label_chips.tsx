// The selector as chips: the same text, edited by clicks.
//
// A chip is a matcher: its value opens the label's other values, its cross takes it away. `+ label`
// adds one for a label the series have.

import { createSignal, For, Show } from "solid-js";
import { askLabels, askLabelValues } from "../api/prometheus";
import { printable } from "../text/printable";
import { ContextMenu, type MenuItem } from "../widgets/context_menu";
import { usePage } from "../state/app_store";
import { apiSelector, printMatchers, withoutMatcher, type Matcher } from "../query/matchers";

interface OpenMenu {
  readonly title: string;
  readonly items: readonly MenuItem[];
  readonly x: number;
  readonly y: number;
}

export function LabelChips() {
  const page = usePage();
  const [menu, setMenu] = createSignal<OpenMenu | null>(null);
  const matchers = () => page.matchers() ?? [];
  const commit = (next: readonly Matcher[]): void => page.commitSelector(printMatchers(next));

  async function open(target: HTMLElement, title: string, ask: () => Promise<MenuItem[]>): Promise<void> {
    const { left, bottom } = target.getBoundingClientRect();
    let items: MenuItem[];
    try {
      items = await ask();
    } catch (error) {
      items = [{ label: error instanceof Error ? error.message : String(error), act: () => undefined }];
    }
    if (items.length === 0) items = [{ label: "nothing to choose", act: () => undefined }];
    page.setHeld(true);
    setMenu({ title, items, x: left, y: bottom + 4 });
  }

  function close(): void {
    page.setHeld(false);
    setMenu(null);
  }

  async function values(label: string, others: readonly Matcher[], place: number): Promise<MenuItem[]> {
    const window = page.timeWindow();
    if (window === null) return [];
    const found = await askLabelValues(label, apiSelector(page.type(), others), window, new AbortController().signal);
    return found.map((value) => ({
      label: printable(value).slice(0, 120) || "(empty)",
      act: () => commit([...others.slice(0, place), { label, operator: "=", value }, ...others.slice(place)]),
    }));
  }

  async function labels(target: HTMLElement): Promise<MenuItem[]> {
    const window = page.timeWindow();
    if (window === null) return [];
    const found = await askLabels(apiSelector(page.type(), matchers()), window, new AbortController().signal);
    return found
      .filter((label) => label !== "__profile_type__")
      .map((label) => ({ label, act: () => void open(target, label, () => values(label, matchers(), matchers().length)) }));
  }

  const openLabels = (target: HTMLElement): Promise<void> => open(target, "add a label", () => labels(target));

  return (
    <div class="chips" role="group" aria-label="Selector as labels">
      <For each={matchers()}>
        {(matcher, i) => (
          <span class="chip">
            <button
              type="button"
              class="chip-value"
              title={`${matcher.label}: choose another value`}
              onClick={(event) => void open(event.currentTarget, matcher.label, () => values(matcher.label, withoutMatcher(matchers(), i()), i()))}
            >
              {matcher.label} <i>{matcher.operator}</i> <b>{printable(matcher.value).slice(0, 80) || '""'}</b>
            </button>
            <button type="button" class="chip-remove" aria-label={`Remove ${matcher.label}`} onClick={() => commit(withoutMatcher(matchers(), i()))}>
              ×
            </button>
          </span>
        )}
      </For>
      <button type="button" class="chip-add" onClick={(event) => void openLabels(event.currentTarget)}>
        + label
      </button>
      <Show when={menu()}>
        {(shown) => <ContextMenu title={shown().title} items={shown().items} x={shown().x} y={shown().y} onClose={close} />}
      </Show>
    </div>
  );
}
