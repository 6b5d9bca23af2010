// Tools over the picture: view, search, and what to take away.

import { createSignal, For, onCleanup, Show } from "solid-js";
import { asApiError } from "../api/client";
import { askPprof, type FlameAnswer } from "../api/flame_graph";
import type { Matches } from "../profile/matches";
import { printable } from "../text/printable";
import { perCent } from "../text/format";
import { copyText } from "../widgets/clipboard";
import { usePage } from "../state/app_store";
import type { ViewName } from "../state/url_state";

const VIEWS: ReadonlyArray<{ readonly view: ViewName; readonly label: string }> = [
  { view: "both", label: "Both" },
  { view: "flame", label: "Flame" },
  { view: "table", label: "Table" },
];

/** How long a word such as "copied" stands on a button, in milliseconds. */
const DONE_MS = 1500;

export function Toolbar(props: { matches: Matches | null }) {
  const page = usePage();
  return (
    <div class="toolbar" role="toolbar" aria-label="View">
      <div class="segments" role="group" aria-label="View">
        <For each={VIEWS}>
          {({ view, label }) => (
            <button type="button" aria-pressed={page.state.view === view} onClick={() => page.navigate({ view })}>
              {label}
            </button>
          )}
        </For>
      </div>
      <input
        id="search"
        class="search"
        type="search"
        placeholder="/ search functions (regex)"
        aria-label="Search functions, a regular expression"
        spellcheck={false}
        value={page.state.search}
        onInput={(event) => page.navigate({ search: event.currentTarget.value }, "replace")}
        onKeyDown={(event) => {
          if (event.key !== "Escape") return;
          event.stopPropagation();
          page.navigate({ search: "" }, "replace");
          event.currentTarget.blur();
        }}
      />
      <output class="share" data-value={props.matches?.value}>
        <Show when={props.matches} fallback="">
          {(matches) => <ShareText matches={matches()} />}
        </Show>
      </output>
      <div class="spring" />
      <Show when={page.state.view !== "table"}>
        <button type="button" class="control" aria-pressed={page.state.flip} title="Root at the bottom (f)" onClick={() => page.navigate({ flip: !page.state.flip })}>
          Flip
        </button>
      </Show>
      <PprofButton />
      <DoneButton label="Copy link" done="Copied" title="A link that shows the same picture, with absolute times" act={() => copyText(page.link())} />
    </div>
  );
}

function ShareText(props: { matches: Matches }) {
  const page = usePage();
  const whole = () => page.flame.latest()?.total ?? 0;
  const what = () => {
    if (page.state.search !== "") return props.matches.count === 1 ? "1 function" : `${props.matches.count} functions`;
    return printable(page.state.pick).slice(0, 60);
  };
  return (
    <>
      <b>{perCent(props.matches.value, whole())}</b> of all · {what()}
      <button type="button" class="clear" aria-label="Clear the search" onClick={() => page.navigate({ search: "", pick: "" })}>
        ×
      </button>
    </>
  );
}

/** Downloads the selection as pprof; by script, so that the token goes along and an error is said. */
function PprofButton() {
  const page = usePage();
  const [fault, setFault] = createSignal("");
  async function download(answer: FlameAnswer): Promise<boolean> {
    setFault("");
    try {
      const blob = await askPprof(answer.question, new AbortController().signal);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = `${answer.question.profileType.split(":").slice(0, 2).join("_").replace(/[^\w.-]/g, "_")}.pb.gz`;
      link.click();
      // The browser has taken the blob over by then.
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
      return true;
    } catch (error) {
      setFault(asApiError(error).message);
      return false;
    }
  }
  return (
    <>
      <Show when={fault()}>
        <span class="field-fault" role="alert">
          pprof: {fault()}
        </span>
      </Show>
      <DoneButton
        label="pprof"
        done="Saved"
        title="Download the selection as a gzipped pprof profile"
        disabled={(page.flame.latest()?.total ?? 0) === 0}
        act={async () => {
          const answer = page.flame.latest();
          return answer !== undefined && (await download(answer));
        }}
      />
    </>
  );
}

/** A button that says for a moment that it has done its work. */
export function DoneButton(props: { label: string; done: string; title?: string; disabled?: boolean; act(): Promise<boolean> }) {
  const [isDone, setDone] = createSignal(false);
  let timer: ReturnType<typeof setTimeout> | undefined;
  onCleanup(() => clearTimeout(timer));
  return (
    <button
      type="button"
      class="control"
      title={props.title}
      disabled={props.disabled}
      onClick={() => {
        void props.act().then((worked) => {
          setDone(worked);
          clearTimeout(timer);
          timer = setTimeout(() => setDone(false), DONE_MS);
        });
      }}
    >
      <span aria-live="polite">{isDone() ? props.done : props.label}</span>
    </button>
  );
}
