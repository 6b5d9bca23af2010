// How sure: always there, whatever else the page shows.

import { createSignal, For, Show } from "solid-js";
import type { FlameAnswer } from "../api/flame_graph";
import { wireNumber } from "../api/exact_json";
import { printable } from "../text/printable";
import { formatValue, groupDigits, perCent, shortCount } from "../text/format";
import { AgentWord } from "./agent_card";
import { Dialog } from "../widgets/dialog";
import { usePage } from "../state/app_store";

export function BottomLine() {
  const page = usePage();
  const answer = () => page.flame.latest();
  const [reasons, setReasons] = createSignal(false);
  const [warnings, setWarnings] = createSignal(false);
  const plural = (count: number, one: string): string => `${shortCount(count)} ${one}${count === 1 || one === "series" ? "" : "s"}`;
  const named = (shown: FlameAnswer): string => perCent(shown.symbolization.named, shown.symbolization.frames);
  return (
    <footer class="bottom">
      <Show when={answer()} fallback={<span class="muted">no answer yet</span>}>
        {(shown) => (
          <>
            <span title={groupDigits(String(shown().samples))}>{plural(shown().samples, "sample")}</span>
            <span>{plural(shown().series, "series")}</span>
            <Show when={shown().symbolization.frames > 0} fallback={<span>no frames</span>}>
              <span>
                {named(shown())} of frames named
                <Show when={shown().symbolization.named < shown().symbolization.frames}>
                  {" "}
                  <button type="button" class="link" onClick={() => setReasons(true)}>
                    why not 100 %?
                  </button>
                </Show>
              </span>
            </Show>
            <Show when={shown().prunedNodes > 0}>
              <span title="The smallest frames were put together under (other); their weight is kept">
                {plural(shown().prunedNodes, "small frame")} in (other), {perCent(shown().prunedValue, shown().total)}
              </span>
            </Show>
            <Show when={shown().warnings.length > 0}>
              <span class="warnings" title={shown().warnings.map(printable).join("\n")}>
                <button type="button" class="link warning" onClick={() => setWarnings(true)}>
                  {plural(shown().warnings.length, "warning")}
                </button>
                <span class="warning">: {printable(shown().warnings[0])}</span>
              </span>
            </Show>
            <span>{shown().took_ms < 1 ? "< 1" : Math.round(shown().took_ms)} ms</span>
            <span>
              {shown().shards.answered} of {shown().shards.asked} {shown().shards.asked === 1 ? "shard" : "shards"}
            </span>
          </>
        )}
      </Show>
      <div class="spring" />
      <AgentWord />
      <Show when={reasons() && answer()}>{(shown) => <Reasons answer={shown()} onClose={() => setReasons(false)} />}</Show>
      <Show when={warnings() && answer()}>{(shown) => <Warnings answer={shown()} onClose={() => setWarnings(false)} />}</Show>
    </footer>
  );
}

/** What the answer leaves out or could not do, whole. */
function Warnings(props: { answer: FlameAnswer; onClose(): void }) {
  const page = usePage();
  return (
    <Dialog title="Warnings" onClose={props.onClose} page={page}>
      <ul class="warning-list">
        <For each={props.answer.warnings}>{(warning) => <li>{printable(warning)}</li>}</For>
      </ul>
    </Dialog>
  );
}

/** Which frames have no name, why, and what to do. */
function Reasons(props: { answer: FlameAnswer; onClose(): void }) {
  const page = usePage();
  const missing = () => props.answer.symbolization.frames - props.answer.symbolization.named;
  return (
    <Dialog title="Frames without a name" onClose={props.onClose} page={page}>
      <p>
        {groupDigits(String(missing()))} of {groupDigits(String(props.answer.symbolization.frames))} frames have no name. Their weight is in every sum.
      </p>
      <table class="reasons">
        <thead>
          <tr>
            <th>reason</th>
            <th>binary</th>
            <th class="number">frames</th>
            <th class="number">weight</th>
          </tr>
        </thead>
        <tbody>
          <For each={[...props.answer.symbolization.unnamed].sort((a, b) => wireNumber(b.value) - wireNumber(a.value))}>
            {(entry) => (
              <tr>
                <td>{printable(entry.text || entry.reason)}</td>
                <td class="code">
                  {printable(entry.binary ?? "")}
                  <Show when={entry.build_id}>
                    {(buildId) => <div class="muted">{printable(buildId())}</div>}
                  </Show>
                </td>
                <td class="number">{groupDigits(String(entry.frames))}</td>
                <td class="number">
                  {formatValue(wireNumber(entry.value), props.answer.measure)}
                  <div class="muted">{perCent(wireNumber(entry.value), props.answer.total)}</div>
                </td>
              </tr>
            )}
          </For>
        </tbody>
      </table>
    </Dialog>
  );
}
