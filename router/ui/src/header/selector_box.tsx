// The selector as text, with completion of labels, values and functions.

import { createEffect, createMemo, createSignal, createUniqueId, For, on, Show } from "solid-js";
import { fetchLabels, fetchLabelValues } from "../api/prometheus";
import { printable } from "../text/printable";
import { useStore } from "../state/app_store";
import {
  applyCompletion,
  completionRange,
  otherMatchers,
  rankCandidates,
  STACK_LABELS,
  stackLabelValues,
  type CompletionRange,
} from "../query/completion";
import { apiSelector, quoted, type Matcher } from "../query/matchers";

export function SelectorBox() {
  const store = useStore();
  let input!: HTMLInputElement;
  let list: HTMLUListElement | undefined;
  const id = createUniqueId();
  const [text, setText] = createSignal(store.state.query);
  const [completed, setCompleted] = createSignal<CompletionRange>(null);
  const [candidates, setCandidates] = createSignal<readonly string[]>([]);
  const [active, setActive] = createSignal(-1);
  /** Key of the text for which the candidates were fetched: label, profile type and other matchers. */
  let fetched = "";
  let running = new AbortController();

  // Chips, links and the back button change the text too.
  createEffect(on(() => store.state.query, setText));

  const shown = createMemo(() => {
    const at = completed();
    return at === null ? [] : rankCandidates(candidates(), at.typed);
  });

  function close(): void {
    setCompleted(null);
    setActive(-1);
  }

  /**
   * Fetches the candidates for the text at the cursor. Does so once while label, type and other matchers stay the same.
   */
  async function suggest(): Promise<void> {
    const at = completionRange(input.value, input.selectionStart ?? input.value.length);
    setCompleted(at);
    setActive(-1);
    if (at === null) return;
    const others = otherMatchers(input.value, at);
    const context = JSON.stringify([at.kind, at.kind === "value" && at.label, store.type(), others]);
    if (context === fetched) return;
    fetched = context;
    running.abort();
    running = new AbortController();
    setCandidates([]);
    try {
      setCandidates(await candidatesAt(at, others, running.signal));
    } catch (_noCandidates) {
      // The user can type without completion, and the next key tries again.
      if (fetched === context) fetched = "";
    }
  }

  async function candidatesAt(
    at: NonNullable<CompletionRange>,
    others: readonly Matcher[],
    signal: AbortSignal,
  ): Promise<string[]> {
    const window = store.timeWindow();
    if (window === null) return [];
    const series = { selector: apiSelector(store.type(), others), window };
    if (at.kind === "name") {
      const labels = await fetchLabels(series, signal);
      return [...new Set([...labels.filter((label) => label !== "__profile_type__"), ...STACK_LABELS])];
    }
    return stackLabelValues(at.label, store.flame.latest()?.tree) ?? fetchLabelValues(at.label, series, signal);
  }

  function take(chosen: string): void {
    const at = completed();
    if (at === null) return;
    const completion = applyCompletion(input.value, at, chosen, quoted);
    // The field is set before the signal, because the cursor position refers to the new text.
    input.value = completion.text;
    setText(completion.text);
    input.focus();
    input.setSelectionRange(completion.cursor, completion.cursor);
    if (at.kind === "value") close();
    else void suggest();
  }

  function onKeyDown(event: KeyboardEvent): void {
    const open = shown().length > 0;
    if (open && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      const step = event.key === "ArrowDown" ? 1 : -1;
      setActive((active() + step + shown().length + (active() < 0 && step < 0 ? 1 : 0)) % shown().length);
      list?.children[active()]?.scrollIntoView({ block: "nearest" });
    } else if (open && (event.key === "Tab" || event.key === "Enter") && active() >= 0) take(shown()[active()]);
    else if (event.key === "Enter") {
      close();
      store.commitSelector(input.value);
    } else if (event.key === "Escape" && completed() !== null) close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  return (
    <div class="selector">
      <input
        ref={input}
        id="selector"
        class="selector-input"
        type="text"
        role="combobox"
        aria-label="Selector"
        aria-expanded={shown().length > 0}
        aria-controls={`${id}-list`}
        aria-autocomplete="list"
        aria-activedescendant={active() >= 0 ? `${id}-${active()}` : undefined}
        aria-invalid={store.selectorError() !== undefined}
        autocomplete="off"
        spellcheck={false}
        placeholder={'{service_name="…"}'}
        value={text()}
        onInput={(event) => {
          setText(event.currentTarget.value);
          void suggest();
        }}
        onFocus={() => void suggest()}
        onClick={() => void suggest()}
        onBlur={close}
        onKeyDown={onKeyDown}
      />
      <Show when={shown().length > 0}>
        <ul class="suggestions" role="listbox" id={`${id}-list`} ref={list} aria-label="Suggestions">
          <For each={shown()}>
            {(candidate, i) => (
              <li
                id={`${id}-${i()}`}
                role="option"
                aria-selected={i() === active()}
                // Otherwise the field would lose the focus, which would remove the list before the click.
                onPointerDown={(event) => {
                  event.preventDefault();
                  take(candidate);
                }}
              >
                {printable(candidate).slice(0, 300) || "(empty)"}
              </li>
            )}
          </For>
        </ul>
      </Show>
      <Show when={store.selectorError()}>
        {(fault) => (
          <div class="field-error" role="alert">
            {fault().message}
          </div>
        )}
      </Show>
    </div>
  );
}
