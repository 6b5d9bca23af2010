// What, of whom, when: the question.

import { createMemo, For, Show } from "solid-js";
import { LabelChips } from "./label_chips";
import { SelectorBox } from "./selector_box";
import { isRelative } from "../query/time_range";
import { TimePicker } from "./time_picker";
import { profileTypeLabel } from "../text/format";
import { LIVE_MS, usePage } from "../state/app_store";
import type { Theme } from "../color/theme";

export function TopBar(props: { theme: Theme; onHelp(): void }) {
  const page = usePage();
  const types = createMemo(() => {
    const known = page.catalog.latest()?.types ?? [];
    const chosen = page.type();
    return chosen === "" || known.includes(chosen) ? known : [chosen, ...known];
  });
  /** Short where that says which one it is, else the full id. */
  const label = (type: string): string => {
    const short = profileTypeLabel(type);
    return types().filter((other) => profileTypeLabel(other) === short).length > 1 ? type : short;
  };

  function ask(): void {
    const input = document.getElementById("selector");
    if (input instanceof HTMLInputElement) page.commitSelector(input.value);
    else page.run();
  }

  return (
    <header class="top">
      <div class="top-line">
        <h1 class="brand">
          <svg viewBox="0 0 20 20" width="20" height="20" aria-hidden="true">
            <path d="M2 3h16v4H2z" class="varve-1" />
            <path d="M2 8.5h11v4H2z" class="varve-2" />
            <path d="M2 14h6v4H2z" class="varve-3" />
          </svg>
          varve
        </h1>
        <select
          class="control type-menu"
          aria-label="Profile type"
          title={page.type()}
          disabled={types().length === 0}
          onChange={(event) => page.navigate({ type: event.currentTarget.value })}
        >
          <Show when={types().length === 0}>
            <option>no profiles yet</option>
          </Show>
          <For each={types()}>
            {(type) => (
              <option value={type} selected={type === page.type()} title={type}>
                {label(type)}
              </option>
            )}
          </For>
        </select>
        <SelectorBox />
        <TimePicker />
        <button type="button" class="control primary" title="Ask again (Enter in the selector)" onClick={ask}>
          Run
        </button>
        <Show when={isRelative(page.range())}>
          <button
            type="button"
            class="control live"
            aria-pressed={page.state.live}
            title={`Ask again every ${LIVE_MS / 1000} s`}
            onClick={() => page.navigate({ live: !page.state.live })}
          >
            <i class="live-dot" aria-hidden="true" /> Live
          </button>
        </Show>
        <button type="button" class="control icon" title="Light or dark (t)" aria-label="Light or dark" onClick={props.theme.toggle}>
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
