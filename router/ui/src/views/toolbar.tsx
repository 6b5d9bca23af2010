// Controls of the views: the choice of views, the search, and buttons to export the selection.

import { For, Show } from "solid-js";
import type { Matches } from "../profile/matches";
import { useStore } from "../state/app_store";
import type { ViewName } from "../state/url_state";
import { perCent } from "../text/format";
import { printable } from "../text/printable";
import { copyText } from "../widgets/clipboard";
import { DoneButton } from "../widgets/done_button";
import { PprofButton } from "./pprof_button";

const VIEWS: ReadonlyArray<{ readonly view: ViewName; readonly label: string }> = [
  { view: "both", label: "Both" },
  { view: "flame", label: "Flame" },
  { view: "table", label: "Table" },
];

export function Toolbar(props: { matches: Matches | null }) {
  const store = useStore();
  return (
    <div class="toolbar" role="toolbar" aria-label="View">
      <div class="segments" role="group" aria-label="View">
        <For each={VIEWS}>
          {({ view, label }) => (
            <button type="button" aria-pressed={store.state.view === view} onClick={() => store.navigate({ view })}>
              {label}
            </button>
          )}
        </For>
      </div>
      <SearchField />
      <output class="share" data-value={props.matches?.value}>
        <Show when={props.matches} fallback="">
          {(matches) => <MatchedShare matches={matches()} />}
        </Show>
      </output>
      <button
        type="button"
        class="control"
        aria-pressed={store.state.fold}
        title="Remove the native frames that run functions of a language, such as _PyEval_EvalFrameDefault"
        onClick={() => store.navigate({ fold: !store.state.fold })}
      >
        Fold interpreters
      </button>
      <Show when={store.state.view !== "table"}>
        <button
          type="button"
          class="control"
          aria-pressed={store.state.flip}
          title="Root at the bottom (f)"
          onClick={() => store.navigate({ flip: !store.state.flip })}
        >
          Flip
        </button>
      </Show>
      <PprofButton />
      <DoneButton
        label="Copy link"
        done="Copied"
        title="Copy a link to this view, with absolute times"
        act={() => copyText(store.link())}
      />
    </div>
  );
}

function SearchField() {
  const store = useStore();
  return (
    <input
      id="search"
      class="search"
      type="search"
      placeholder="/ search functions (regex)"
      aria-label="Search functions, a regular expression"
      spellcheck={false}
      value={store.state.search}
      onInput={(event) => store.navigate({ search: event.currentTarget.value }, "replace")}
      onKeyDown={(event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        store.navigate({ search: "" }, "replace");
        event.currentTarget.blur();
      }}
    />
  );
}

/** Share of the stacks that match the search or contain the marked function, with a button to clear both. */
function MatchedShare(props: { matches: Matches }) {
  const store = useStore();
  const total = () => store.flame.latest()?.total ?? 0;
  const matched = () => {
    if (store.state.search === "") return printable(store.state.pick).slice(0, 60);
    return props.matches.count === 1 ? "1 function" : `${props.matches.count} functions`;
  };
  return (
    <>
      <span class="share-text">
        <b>{perCent(props.matches.value, total())}</b> of all · {matched()}
      </span>
      <button
        type="button"
        class="clear"
        aria-label="Clear the search"
        onClick={() => store.navigate({ search: "", pick: "" })}
      >
        ×
      </button>
    </>
  );
}
