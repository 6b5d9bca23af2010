// View of a response without data. Shows the matcher or the time range that excludes everything, and how to change it.

import { createMemo, createResource, For, Match, onCleanup, Show, Switch } from "solid-js";
import type { FlameResponse } from "../../api/flame_graph";
import { printMatcher, printMatchers, withoutMatcher } from "../../query/matchers";
import { clockText } from "../../query/time_range";
import { useStore } from "../../state/app_store";
import { formatValue } from "../../text/format";
import { diagnose, type Diagnosis } from "./diagnosis";

export function NoData(props: { response: FlameResponse }) {
  const query = () => props.response.query;
  /** Key of the selection. Repetitions of a live query have the same key, and so the same reason. */
  const selection = createMemo(() => {
    const { profileType, matchers, range } = query();
    return [profileType, printMatchers(matchers), range.from, range.to].join(" ");
  });
  let running = new AbortController();
  onCleanup(() => running.abort());
  const [diagnosis] = createResource(selection, () => {
    running.abort();
    running = new AbortController();
    return diagnose(query(), running.signal);
  });
  const window = () => query().window;
  return (
    <section class="empty" role="status">
      <h2>No data matches this query</h2>
      <p class="code">{printMatchers(query().matchers)}</p>
      <p class="muted">
        from {clockText(window().start_s)} to {clockText(window().end_s, window().start_s)}
      </p>
      <Switch>
        <Match when={diagnosis.loading}>
          <p>Looking for the reason …</p>
        </Match>
        <Match when={diagnosis.error}>
          <p>The reason could not be determined: {String(diagnosis.error?.message ?? diagnosis.error)}</p>
        </Match>
        <Match when={diagnosis()}>{(found) => <Reasons response={props.response} diagnosis={found()} />}</Match>
      </Switch>
    </section>
  );
}

function Reasons(props: { response: FlameResponse; diagnosis: Diagnosis }) {
  const store = useStore();
  const isUnknown = (): boolean => props.diagnosis.matchers.length === 0 && props.diagnosis.range === null;
  function removeMatcher(index: number): void {
    store.commitSelector(printMatchers(withoutMatcher(props.response.query.matchers, index)));
  }
  return (
    <>
      <For each={props.diagnosis.matchers}>
        {({ matcher, index, totalWithout }) => (
          <p>
            <code>{printMatcher(matcher)}</code> excludes everything. Without it, the total is{" "}
            {formatValue(totalWithout, props.response.measure)}.{" "}
            <button type="button" class="control" onClick={() => removeMatcher(index)}>
              Remove this matcher
            </button>
          </p>
        )}
      </For>
      <Show when={props.diagnosis.range}>
        {(longer) => (
          <p>
            The time range has no data, but {longer().label} has.{" "}
            <button type="button" class="control" onClick={() => store.navigate(longer().range)}>
              Show {longer().label}
            </button>
          </p>
        )}
      </Show>
      <Show when={isUnknown()}>
        <p>
          {props.response.query.matchers.length === 0
            ? "No data of this profile type is stored."
            : "No single matcher excludes everything, and no other time range has data. Remove some matchers."}
        </p>
      </Show>
    </>
  );
}
