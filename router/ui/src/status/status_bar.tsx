// Status bar, which is always shown. It says how complete and exact the response is.

import { createMemo, createSignal, For, Show } from "solid-js";
import type { FlameResponse } from "../api/flame_graph";
import { nameCounts } from "../profile/unnamed_frames";
import { wireNumber } from "../profile/wire_integer";
import { useStore } from "../state/app_store";
import { groupDigits, perCent, shortCount } from "../text/format";
import { printable } from "../text/printable";
import { Dialog } from "../widgets/dialog";
import { AgentButton } from "./agent_card";
import { IncompleteDialog, UnnamedDialog } from "./unnamed_dialog";

export function StatusBar() {
  const store = useStore();
  const isLoading = (): boolean => store.catalog.pending() || store.flame.pending();
  return (
    <footer class="status-bar">
      <Show
        when={store.flame.latest()}
        fallback={<span class="muted">{isLoading() ? "loading" : "no response yet"}</span>}
      >
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
  const { warnings } = useStore();
  const [open, setOpen] = createSignal<"unnamed" | "incomplete" | "warnings" | null>(null);
  const counts = createMemo(() => nameCounts(props.response.symbolization));
  /** Value of the stacks in which the unwinder stopped. */
  const incomplete = () => counts().stopped.reduce((sum, { value }) => sum + wireNumber(value), 0);
  return (
    <>
      <span title={groupDigits(String(props.response.samples))}>{counted(props.response.samples, "sample")}</span>
      <span>{counted(props.response.series, "series", "series")}</span>
      <Show when={counts().frames > 0} fallback={<span>no frames</span>}>
        <span>
          {perCent(counts().named, counts().frames)} of frames named
          <Show when={counts().named < counts().frames}>
            {" "}
            <button type="button" class="link" onClick={() => setOpen("unnamed")}>
              show unnamed frames
            </button>
          </Show>
        </span>
      </Show>
      <Show when={counts().stopped.length > 0}>
        <button type="button" class="link" onClick={() => setOpen("incomplete")}>
          {perCent(incomplete(), props.response.total)} in incomplete stacks
        </button>
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
      <Show when={open() === "incomplete"}>
        <IncompleteDialog response={props.response} onClose={() => setOpen(null)} />
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
