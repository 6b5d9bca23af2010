// The controls of the query: profile type, selector, time range, and the button Run.

import { createMemo, For, Show } from "solid-js";
import type { Theme } from "../color/theme";
import { isRelative } from "../query/time_range";
import { LIVE_MS, useStore } from "../state/app_store";
import { profileTypeLabel } from "../text/format";
import { LabelChips } from "./label_chips";
import { SelectorBox } from "./selector_box";
import { TimePicker } from "./time_picker";

export function Header(props: { theme: Theme; onHelp(): void }) {
  const store = useStore();

  function run(): void {
    const input = document.getElementById("selector");
    if (input instanceof HTMLInputElement) store.commitSelector(input.value);
    else store.run();
  }

  return (
    <header class="header">
      <div class="header-line">
        <h1 class="brand">
          <svg viewBox="0 0 20 20" width="20" height="20" aria-hidden="true">
            <path d="M2 3h16v4H2z" class="varve-1" />
            <path d="M2 8.5h11v4H2z" class="varve-2" />
            <path d="M2 14h6v4H2z" class="varve-3" />
          </svg>
          varve
        </h1>
        <TypeMenu />
        <SelectorBox />
        <TimePicker />
        <button type="button" class="control primary" title="Run the query (Enter in the selector)" onClick={run}>
          Run
        </button>
        <Show when={isRelative(store.range())}>
          <button
            type="button"
            class="control live"
            aria-pressed={store.state.live}
            title={`Repeat the query every ${LIVE_MS / 1000} s`}
            onClick={() => store.navigate({ live: !store.state.live })}
          >
            <i class="live-dot" aria-hidden="true" /> Live
          </button>
        </Show>
        <button
          type="button"
          class="control icon"
          title="Light or dark (t)"
          aria-label="Light or dark"
          onClick={props.theme.toggle}
        >
          {props.theme.name() === "dark" ? "☾" : "☀"}
        </button>
        <button type="button" class="control icon" title="Help (?)" aria-label="Help" onClick={props.onHelp}>
          ?
        </button>
      </div>
      <LabelChips />
    </header>
  );
}

/** Menu of the stored profile types. */
function TypeMenu() {
  const store = useStore();
  const types = createMemo(() => {
    const known = store.catalog.latest()?.types ?? [];
    const chosen = store.type();
    return chosen === "" || known.includes(chosen) ? known : [chosen, ...known];
  });
  /** Label of a profile type: its short label if that is unique, otherwise its full ID. */
  const label = (type: string): string => {
    const short = profileTypeLabel(type);
    return types().filter((other) => profileTypeLabel(other) === short).length > 1 ? type : short;
  };
  return (
    <select
      class="control type-menu"
      aria-label="Profile type"
      title={store.type()}
      disabled={types().length === 0}
      onChange={(event) => store.navigate({ type: event.currentTarget.value })}
    >
      <Show when={types().length === 0}>
        <option>{store.isEmpty() ? "no profiles yet" : "no type known"}</option>
      </Show>
      <For each={types()}>
        {(type) => (
          <option value={type} selected={type === store.type()} title={type}>
            {label(type)}
          </option>
        )}
      </For>
    </select>
  );
}
