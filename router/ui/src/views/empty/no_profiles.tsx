// View of an empty store. Shows how to send the first profile, and the state of the local agent.

import { For, Show } from "solid-js";
import { hasToken } from "../../api/client";
import { useStore } from "../../state/app_store";
import { AgentCard } from "../../status/agent_card";
import { sentence } from "../../text/sentence";
import { copyText } from "../../widgets/clipboard";
import { DoneButton } from "../../widgets/done_button";

/** A command that sends profiles. */
interface Sender {
  readonly title: string;
  readonly note: string;
  readonly command: string;
}

/**
 * Commands with this server's address. They use the default OTLP ports, because the browser does not know the real
 * ones.
 */
function senders(): readonly Sender[] {
  const host = location.hostname;
  // The token itself is not shown, because commands are copied into chats.
  const curl = hasToken() ? 'curl -H "Authorization: Bearer $VARVE_TOKEN"' : "curl";
  const headers = hasToken() ? '\nexport OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer $VARVE_TOKEN"' : "";
  const tokenFile = hasToken() ? " --token-file token.txt" : "";
  const base = location.href.replace(/[?#].*$/, "").replace(/\/$/, "");
  const push = `'${base}/api/v1/push?service_name=my-service'`;
  const goProfile = "'http://localhost:6060/debug/pprof/profile?seconds=10'";
  return [
    {
      title: "A pprof file",
      note: "any pprof profile, gzipped or not",
      command: `${curl} --data-binary @cpu.pb.gz ${push}`,
    },
    {
      title: "A Go program",
      note: "with net/http/pprof on port 6060: ten seconds of CPU time",
      command: `curl -s ${goProfile} | ${curl} --data-binary @- ${push}`,
    },
    {
      title: "All processes of a host",
      note: "the agent sends OTLP over gRPC, by default to port 4317",
      command: `sudo varve agent --endpoint http://${host}:4317${tokenFile}`,
    },
    {
      title: "OpenTelemetry",
      note: "any OTLP profiles exporter, by default gRPC on port 4317 and HTTP on port 4318",
      command: `export OTEL_EXPORTER_OTLP_ENDPOINT=http://${host}:4317${headers}`,
    },
  ];
}

export function NoProfiles() {
  const store = useStore();
  return (
    <section class="empty" aria-label="No profiles yet">
      <h2>No profiles yet</h2>
      <p>The first profile appears here automatically, a moment after it arrives.</p>
      <Show when={store.agent.latest()}>{(agent) => <AgentCard agent={agent()} />}</Show>
      <Show when={store.agent.latest() === null}>
        <div class="card">
          <h3>No local agent</h3>
          <p>This server only receives profiles. Send one with any of the commands below.</p>
        </div>
      </Show>
      <Show when={store.agent.latest() === undefined && store.agent.failure()}>
        {(failure) => (
          <div class="card bad" role="status">
            <h3>The state of the local agent is unknown</h3>
            <p>{sentence(failure().message)}</p>
          </div>
        )}
      </Show>
      <h3>Send a first profile</h3>
      <For each={senders()}>
        {(sender) => (
          <div class="sender">
            <div>
              <b>{sender.title}</b> <span class="muted">{sender.note}</span>
            </div>
            <div class="sender-command">
              <code>{sender.command}</code>
              <DoneButton label="Copy" done="Copied" act={() => copyText(sender.command)} />
            </div>
          </div>
        )}
      </For>
    </section>
  );
}
