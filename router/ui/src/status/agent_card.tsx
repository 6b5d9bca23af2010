// State of the agent inside this `varve up`, with the reason if it is not running.

import { createSignal, For, Show } from "solid-js";
import type { AgentState } from "../api/agent";
import { useStore } from "../state/app_store";
import { shortCount } from "../text/format";
import { sentence } from "../text/sentence";
import { Dialog } from "../widgets/dialog";

/** Shows the agent's state in full. */
export function AgentCard(props: { agent: AgentState }) {
  const is = (state: AgentState["state"]): boolean => props.agent.state === state;
  const title = (): string => {
    if (is("running")) {
      const isFirst = (props.agent.samples ?? 0) === 0;
      return `The local agent is running${isFirst ? ". Its first samples arrive within seconds" : ""}`;
    }
    return is("off") ? "The local agent is off" : "The local agent is not running";
  };
  return (
    <div class="card" classList={{ good: is("running"), bad: is("failed") }} role="status">
      <h3>{title()}</h3>
      <Show when={is("running")}>
        <p>
          {props.agent.frequency_hz ?? "?"} samples per second per CPU. {shortCount(props.agent.samples ?? 0)} samples
          so far, {shortCount(props.agent.dropped ?? 0)} dropped.
        </p>
      </Show>
      <Show when={props.agent.reason}>{(reason) => <p>{sentence(reason())}</p>}</Show>
      <Show when={(props.agent.missing ?? []).length > 0}>
        <p>Missing privileges:</p>
        <ul>
          <For each={props.agent.missing}>{(missing) => <li class="code">{missing}</li>}</For>
        </ul>
      </Show>
    </div>
  );
}

/** Shows the agent's state in a few words. A click opens the card. */
export function AgentButton() {
  const store = useStore();
  const [open, setOpen] = createSignal(false);
  const words = (agent: AgentState): string => {
    if (agent.state !== "running") return agent.state === "off" ? "agent off" : "agent not running: why?";
    const dropped = (agent.dropped ?? 0) > 0 ? `, ${shortCount(agent.dropped ?? 0)} dropped` : "";
    return `agent running: ${shortCount(agent.samples ?? 0)} samples${dropped}`;
  };
  return (
    <Show when={store.agent.latest()}>
      {(agent) => (
        <>
          <button
            type="button"
            class="link agent-button"
            classList={{ warn: agent().state === "failed" }}
            onClick={() => setOpen(true)}
          >
            {words(agent())}
          </button>
          <Show when={open()}>
            <Dialog title="Agent" onClose={() => setOpen(false)}>
              <AgentCard agent={agent()} />
            </Dialog>
          </Show>
        </>
      )}
    </Show>
  );
}
