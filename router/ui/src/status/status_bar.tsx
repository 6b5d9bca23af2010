// Status bar: how complete and exact the response is. It is always shown.

import { createSignal, For, Show } from "solid-js";
import type { FlameResponse } from "../api/flame_graph";
import { useStore } from "../state/app_store";
import { groupDigits, perCent, shortCount } from "../text/format";
import { printable } from "../text/printable";
import { Dialog } from "../widgets/dialog";
import { AgentButton } from "./agent_card";
import { UnnamedDialog } from "./unnamed_dialog";

export function StatusBar() {
  const store = useStore();
  return (
    <footer class="status-bar">
      <Show when={store.flame.latest()} fallback={<span class="muted">no response yet</span>}>
        {(response) => <ResponseFacts response={response()} />}
      </Show>
      <div class="spring" />
      <AgentButton />
    </footer>
  );
}

function counted(count: number, singular: string, plural = `${singular}s`): string {
  return `${shortCount(count)} ${count === 1 ? singular : plural}`;
}

function ResponseFacts(props: { response: FlameResponse }) {
  const [open, setOpen] = createSignal<"unnamed" | "warnings" | null>(null);
  const symbolization = () => props.response.symbolization;
  const warnings = () => props.response.warnings;
  return (
    <>
      <span title={groupDigits(String(props.response.samples))}>{counted(props.response.samples, "sample")}</span>
      <span>{counted(props.response.series, "series", "series")}</span>
      <Show when={symbolization().frames > 0} fallback={<span>no frames</span>}>
        <span>
          {perCent(symbolization().named, symbolization().frames)} of frames named
          <Show when={symbolization().named < symbolization().frames}>
            {" "}
            <button type="button" class="link" onClick={() => setOpen("unnamed")}>
              why not 100 %?
            </button>
          </Show>
        </span>
      </Show>
      <Show when={props.response.prunedNodes > 0}>
        <span title="The smallest frames are merged into (other), which has their values">
          {counted(props.response.prunedNodes, "small frame")} in (other),{" "}
          {perCent(props.response.prunedValue, props.response.total)}
        </span>
      </Show>
      <Show when={warnings().length > 0}>
        <span class="warnings" title={warnings().map(printable).join("\n")}>
          <button type="button" class="link warning" onClick={() => setOpen("warnings")}>
            {counted(warnings().length, "warning")}
          </button>
          <span class="warning">: {printable(warnings()[0])}</span>
        </span>
      </Show>
      <span>{props.response.took_ms < 1 ? "< 1" : Math.round(props.response.took_ms)} ms</span>
      <span>
        {props.response.shards.answered} of {counted(props.response.shards.asked, "shard")}
      </span>
      <Show when={open() === "unnamed"}>
        <UnnamedDialog response={props.response} onClose={() => setOpen(null)} />
      </Show>
      <Show when={open() === "warnings"}>
        <Dialog title="Warnings" onClose={() => setOpen(null)}>
          <ul class="warning-list">
            <For each={warnings()}>{(warning) => <li>{printable(warning)}</li>}</For>
          </ul>
        </Dialog>
      </Show>
    </>
  );
}
