// What went wrong or is under way, above the picture and never instead of it.

import { createSignal, For, onCleanup, Show } from "solid-js";
import { setToken } from "../api/client";
import { usePage } from "../state/app_store";
import { sentence } from "../text/sentence";

export function Notices() {
  const page = usePage();
  const refused = () => {
    const sentences = page.failures().filter((failure) => failure.kind === "refused").map((failure) => failure.message);
    return [...new Set(sentences)];
  };
  const partial = () => {
    const shards = page.flame.latest()?.shards;
    return shards !== undefined && shards.answered < shards.asked ? shards : undefined;
  };
  const kept = () => (page.flame.latest() === undefined ? "" : " The picture below is the last answer.");
  return (
    <div class="notices">
      <Show when={page.lostServer()}>
        {(failure) => (
          <div class="notice error" role="alert">
            <b>{failure().kind === "unreachable" ? "No connection." : "The server is not ready."}</b> {sentence(failure().message)} Trying again every
            second.{kept()}
          </div>
        )}
      </Show>
      <Show when={page.needsToken()}>{(failure) => <TokenForm sentence={failure().message} />}</Show>
      <For each={refused()}>
        {(message) => (
          <div class="notice error" role="alert">
            <b>Error.</b> {sentence(message)}
            {kept()}
          </div>
        )}
      </For>
      <Show when={partial()}>
        {(shards) => (
          <div class="notice warn" role="status">
            <b>Partial answer.</b> {shards().answered} of {shards().asked} shards answered: every number below is too low.
          </div>
        )}
      </Show>
      <Show when={page.flame.slow() || page.timeline.slow()}>
        <Progress />
      </Show>
    </div>
  );
}

/** A bar that moves, the seconds so far, and the way out. */
function Progress() {
  const page = usePage();
  const [seconds, setSeconds] = createSignal(0);
  const timer = setInterval(() => setSeconds(seconds() + 1), 1000);
  onCleanup(() => clearInterval(timer));
  return (
    <div class="notice progress" role="status">
      <div class="progress-bar" aria-hidden="true" />
      <span>Asking the server{seconds() > 0 ? `, ${seconds()} s` : ""} …</span>
      <button type="button" class="control" onClick={page.cancel}>
        Cancel
      </button>
    </div>
  );
}

/** Asks for the bearer token that the server was started with. */
function TokenForm(props: { sentence: string }) {
  const page = usePage();
  let field!: HTMLInputElement;
  return (
    <form
      class="notice warn"
      onSubmit={(event) => {
        event.preventDefault();
        setToken(field.value.trim());
        page.restart();
      }}
    >
      <b>This server wants a token.</b> {sentence(props.sentence)}
      <label>
        Token <input ref={field} type="password" autocomplete="off" required />
      </label>
      <button type="submit" class="control primary">
        Use it
      </button>
      <span class="muted">kept until this tab is closed</span>
    </form>
  );
}
