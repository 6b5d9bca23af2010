// The selector as chips, which are edited by clicks.
//
// A chip shows one matcher. A click on its value opens a menu of the label's other values, and its cross removes it.
// The button `+ label` adds a matcher for a label of the series.

import { createSignal, For, Show } from "solid-js";
import { fetchLabels, fetchLabelValues } from "../api/prometheus";
import { printable } from "../text/printable";
import { ContextMenu, type MenuItem } from "../widgets/context_menu";
import { useStore } from "../state/app_store";
import { apiSelector, printMatchers, withoutMatcher, type Matcher } from "../query/matchers";

interface OpenMenu {
  readonly title: string;
  readonly items: readonly MenuItem[];
  readonly x: number;
  readonly y: number;
}

export function LabelChips() {
  const store = useStore();
  const [menu, setMenu] = createSignal<OpenMenu | null>(null);
  const matchers = () => store.matchers() ?? [];
  const commit = (next: readonly Matcher[]): void => store.commitSelector(printMatchers(next));

  async function open(target: HTMLElement, title: string, fetchItems: () => Promise<MenuItem[]>): Promise<void> {
    const { left, bottom } = target.getBoundingClientRect();
    let items: MenuItem[];
    try {
      items = await fetchItems();
    } catch (error) {
      items = [{ label: error instanceof Error ? error.message : String(error), act: () => undefined }];
    }
    if (items.length === 0) items = [{ label: "no values", act: () => undefined }];
    setMenu({ title, items, x: left, y: bottom + 4 });
  }

  async function values(label: string, others: readonly Matcher[], position: number): Promise<MenuItem[]> {
    const window = store.timeWindow();
    if (window === null) return [];
    const series = { selector: apiSelector(store.type(), others), window };
    const found = await fetchLabelValues(label, series, new AbortController().signal);
    return found.map((value) => ({
      label: printable(value).slice(0, 120) || "(empty)",
      act: () => commit([...others.slice(0, position), { label, operator: "=", value }, ...others.slice(position)]),
    }));
  }

  async function labels(target: HTMLElement): Promise<MenuItem[]> {
    const window = store.timeWindow();
    if (window === null) return [];
    const series = { selector: apiSelector(store.type(), matchers()), window };
    const found = await fetchLabels(series, new AbortController().signal);
    return found
      .filter((label) => label !== "__profile_type__")
      .map((label) => ({
        label,
        act: () => void open(target, label, () => values(label, matchers(), matchers().length)),
      }));
  }

  const openLabels = (target: HTMLElement): Promise<void> => open(target, "Add a label", () => labels(target));

  return (
    <div class="chips" role="group" aria-label="Selector as labels">
      <For each={matchers()}>
        {(matcher, i) => (
          <span class="chip">
            <button
              type="button"
              class="chip-value"
              title={`Choose another value of ${matcher.label}`}
              onClick={(event) =>
                void open(event.currentTarget, matcher.label, () =>
                  values(matcher.label, withoutMatcher(matchers(), i()), i()),
                )
              }
            >
              {matcher.label} <i>{matcher.operator}</i> <b>{printable(matcher.value).slice(0, 80) || '""'}</b>
            </button>
            <button
              type="button"
              class="chip-remove"
              aria-label={`Remove ${matcher.label}`}
              onClick={() => commit(withoutMatcher(matchers(), i()))}
            >
              ×
            </button>
          </span>
        )}
      </For>
      <button type="button" class="chip-add" onClick={(event) => void openLabels(event.currentTarget)}>
        + label
      </button>
      <Show when={menu()}>
        {(shown) => (
          <ContextMenu
            title={shown().title}
            items={shown().items}
            x={shown().x}
            y={shown().y}
            onClose={() => setMenu(null)}
          />
        )}
      </Show>
    </div>
  );
}
