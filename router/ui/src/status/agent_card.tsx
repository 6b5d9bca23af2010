// Whether the agent of this `varve up` runs, or exactly why not.

import { createSignal, For, Show } from "solid-js";
import type { AgentState } from "../api/agent";
import { shortCount } from "../text/format";
import { Dialog } from "../widgets/dialog";
import { usePage } from "../state/app_store";
import { sentence } from "../text/sentence";

/** The agent's state in full. */
export function AgentCard(props: { agent: AgentState }) {
  const title = (): string => {
    if (props.agent.state === "running") return "The local agent runs: its first samples arrive within seconds";
    return props.agent.state === "off" ? "The local agent is off" : "The local agent does not run";
  };
  return (
    <div class="card" classList={{ good: props.agent.state === "running", bad: props.agent.state === "failed" }} role="status">
      <h3>{title()}</h3>
      <Show when={props.agent.state === "running"}>
        <p>
          {props.agent.frequency_hz ?? "?"} samples a second and CPU; {shortCount(props.agent.samples ?? 0)} taken so far, {shortCount(props.agent.dropped ?? 0)}{" "}
          dropped.
        </p>
      </Show>
      <Show when={props.agent.reason}>{(reason) => <p>{sentence(reason())}</p>}</Show>
      <Show when={(props.agent.missing ?? []).length > 0}>
        <p>What is missing:</p>
        <ul>
          <For each={props.agent.missing}>{(missing) => <li class="code">{missing}</li>}</For>
        </ul>
      </Show>
    </div>
  );
}

/** The agent's state in a few words, for the bottom line; the rest a click away. */
export function AgentWord() {
  const page = usePage();
  const [open, setOpen] = createSignal(false);
  const words = (agent: AgentState): string => {
    if (agent.state !== "running") return agent.state === "off" ? "agent off" : "agent does not run: why?";
    const dropped = (agent.dropped ?? 0) > 0 ? `, ${shortCount(agent.dropped ?? 0)} dropped` : "";
    return `agent runs: ${shortCount(agent.samples ?? 0)} samples${dropped}`;
  };
  return (
    <Show when={page.agent.latest()}>
      {(agent) => (
        <>
          <button type="button" class="link agent-word" classList={{ warn: agent().state === "failed" }} onClick={() => setOpen(true)}>
            {words(agent())}
          </button>
          <Show when={open()}>
            <Dialog title="Agent" onClose={() => setOpen(false)} page={page}>
              <AgentCard agent={agent()} />
            </Dialog>
          </Show>
        </>
      )}
    </Show>
  );
}
