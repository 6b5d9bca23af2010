// Errors and progress. They are shown above the views and never replace them.

import { createSignal, For, onCleanup, Show } from "solid-js";
import type { ApiError, Shards } from "../api/client";
import { useStore } from "../state/app_store";
import { missingShards } from "../text/missing_shards";
import { printable } from "../text/printable";
import { sentence } from "../text/sentence";
import { TokenForm } from "./token_form";

export function Notices() {
  const store = useStore();
  /** Errors that have a message of their own. If several queries have the same message, it is shown once. */
  const refused = () => {
    const failures = store.failures().filter((failure) => failure.kind === "refused");
    return failures.filter((one, i) => failures.findIndex(({ message }) => message === one.message) === i);
  };
  /** The shards of a response that some of them did not answer: of the flame graph, the timeline or the types. */
  const partial = () => {
    const isPartial = (shards: Shards | undefined) => shards !== undefined && shards.answered < shards.asked;
    return [store.flame, store.timeline, store.catalog].map((loader) => loader.latest()?.shards).find(isPartial);
  };
  /** Warnings about times that are damaged on the server's disk. */
  const damaged = () => store.warnings().filter((warning) => warning.startsWith("damaged: "));
  /**
   * Sentence that says which part of the web UI still shows an older response because of this failure; "" if none does.
   */
  const stale = (failure: ApiError): string => {
    if (failure === store.timeline.failure())
      return store.timeline.latest() === undefined ? "" : " The timeline shows the last response.";
    return store.flame.latest() === undefined ? "" : " The view below shows the last response.";
  };
  return (
    <div class="notices">
      <Show when={store.lostServer()}>
        {(failure) => (
          <div class="notice error" role="alert">
            <b>{failure().kind === "unreachable" ? "No connection." : "The server is not ready."}</b>{" "}
            {sentence(failure().message)} Trying again every second.{stale(failure())}
          </div>
        )}
      </Show>
      <Show when={store.needsToken()}>{(failure) => <TokenForm message={failure().message} />}</Show>
      <For each={refused()}>
        {(failure) => (
          <div class="notice error" role="alert">
            <b>Error.</b> {sentence(failure.message)}
            {stale(failure)}
          </div>
        )}
      </For>
      <Show when={partial()}>
        {(shards) => (
          <div
            class="notice warn"
            role="status"
            title={(shards().missing ?? []).map(({ shard, reason }) => `${shard}: ${printable(reason)}`).join("\n")}
          >
            <b>Partial response.</b> {shards().answered} of {shards().asked} shards answered
            {missingShards(shards())}: values below may be too low, and services may be missing.
          </div>
        )}
      </Show>
      <Show when={damaged()[0]}>
        {(first) => (
          <div class="notice warn" role="status" title={damaged().map(printable).join("\n")}>
            <b>Damaged data.</b> {sentence(printable(first()))}
            {damaged().length > 1 ? ` And ${damaged().length - 1} more.` : ""}
          </div>
        )}
      </Show>
      <Show when={store.flame.slow() || store.timeline.slow()}>
        <Progress />
      </Show>
    </div>
  );
}

/** A moving bar with the elapsed seconds and a button to cancel. */
function Progress() {
  const store = useStore();
  const [seconds, setSeconds] = createSignal(0);
  const timer = setInterval(() => setSeconds(seconds() + 1), 1000);
  onCleanup(() => clearInterval(timer));
  return (
    <div class="notice progress" role="status">
      <div class="progress-bar" aria-hidden="true" />
      <span>Waiting for the server{seconds() > 0 ? `, ${seconds()} s` : ""} …</span>
      <button type="button" class="control" onClick={store.cancel}>
        Cancel
      </button>
    </div>
  );
}
