// The selector as text, with completion of labels, values and functions.

import { createEffect, createMemo, createSignal, createUniqueId, For, on, Show } from "solid-js";
import { askLabels, askLabelValues } from "../api/prometheus";
import { printable } from "../text/printable";
import { usePage } from "../state/app_store";
import { applyCompletion, completionPlace, otherMatchers, rankCandidates, STACK_LABELS, stackLabelValues, type CompletionPlace } from "../query/completion";
import { apiSelector, quoted, type Matcher } from "../query/matchers";

export function SelectorBox() {
  const page = usePage();
  let input!: HTMLInputElement;
  let list: HTMLUListElement | undefined;
  const id = createUniqueId();
  const [text, setText] = createSignal(page.state.query);
  const [place, setPlace] = createSignal<CompletionPlace>(null);
  const [candidates, setCandidates] = createSignal<readonly string[]>([]);
  const [active, setActive] = createSignal(-1);
  let asked = "";
  let underWay = new AbortController();

  // Chips, links and the back button change the text too.
  createEffect(on(() => page.state.query, setText));

  const shown = createMemo(() => {
    const at = place();
    return at === null ? [] : rankCandidates(candidates(), at.typed);
  });

  function close(): void {
    setPlace(null);
    setActive(-1);
  }

  /** Looks at what the cursor stands in and fetches its candidates once. */
  async function suggest(): Promise<void> {
    const at = completionPlace(input.value, input.selectionStart ?? input.value.length);
    setPlace(at);
    setActive(-1);
    if (at === null) return;
    const others = otherMatchers(input.value, at);
    const question = JSON.stringify([at.kind, at.kind === "value" && at.label, page.type(), others]);
    if (question === asked) return;
    asked = question;
    underWay.abort();
    underWay = new AbortController();
    setCandidates([]);
    try {
      setCandidates(await candidatesAt(at, others, underWay.signal));
    } catch (_noCandidates) {
      // Completion is a help: without it the text can still be typed. Asked again at the next key.
      if (asked === question) asked = "";
    }
  }

  async function candidatesAt(at: NonNullable<CompletionPlace>, others: readonly Matcher[], signal: AbortSignal): Promise<string[]> {
    const window = page.timeWindow();
    if (window === null) return [];
    const selector = apiSelector(page.type(), others);
    if (at.kind === "name") {
      const labels = await askLabels(selector, window, signal);
      return [...new Set([...labels.filter((label) => label !== "__profile_type__"), ...STACK_LABELS])];
    }
    return stackLabelValues(at.label, page.flame.latest()?.tree) ?? askLabelValues(at.label, selector, window, signal);
  }

  function take(chosen: string): void {
    const at = place();
    if (at === null) return;
    const taken = applyCompletion(input.value, at, chosen, quoted);
    // Signals follow the input here: the cursor must be set on the new text.
    input.value = taken.text;
    setText(taken.text);
    input.focus();
    input.setSelectionRange(taken.cursor, taken.cursor);
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
      page.commitSelector(input.value);
    } else if (event.key === "Escape" && place() !== null) close();
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
        aria-invalid={page.selectorFault() !== undefined}
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
                // Before the blur, so that the list is still there.
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
      <Show when={page.selectorFault()}>{(fault) => <div class="field-fault" role="alert">{fault().message}</div>}</Show>
    </div>
  );
}
