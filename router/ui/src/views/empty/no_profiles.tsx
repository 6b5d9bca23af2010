// Nothing stored yet: how to send the first profile, and whether the local agent is about to.

import { For, Show } from "solid-js";
import { hasToken } from "../../api/client";
import { AgentCard } from "../../status/agent_card";
import { copyText } from "../../widgets/clipboard";
import { usePage } from "../../state/app_store";
import { DoneButton } from "../toolbar";

interface Way {
  readonly title: string;
  readonly note: string;
  readonly command: string;
}

/** Commands for this server, as the browser reaches it. OTLP ports are the defaults: only the server knows others. */
function ways(): readonly Way[] {
  const host = location.hostname;
  // The token itself is not shown: commands are copied into chats.
  const curl = hasToken() ? 'curl -H "Authorization: Bearer $VARVE_TOKEN"' : "curl";
  const headers = hasToken() ? '\nexport OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer $VARVE_TOKEN"' : "";
  const tokenFile = hasToken() ? " --token-file token.txt" : "";
  const base = location.href.replace(/[?#].*$/, "").replace(/\/$/, "");
  return [
    {
      title: "A pprof file",
      note: "any pprof profile, gzipped or not",
      command: `${curl} --data-binary @cpu.pb.gz '${base}/api/v1/push?service_name=my-service'`,
    },
    {
      title: "A Go program",
      note: "with net/http/pprof on port 6060: ten seconds of CPU",
      command: `curl -s 'http://localhost:6060/debug/pprof/profile?seconds=10' | ${curl} --data-binary @- '${base}/api/v1/push?service_name=my-service'`,
    },
    {
      title: "This or another host, whole",
      note: "the agent profiles every process; OTLP over gRPC, port 4317 unless changed",
      command: `sudo varve agent --endpoint http://${host}:4317${tokenFile}`,
    },
    {
      title: "OpenTelemetry",
      note: "any OTLP profiles exporter: gRPC on 4317, HTTP on 4318 unless changed",
      command: `export OTEL_EXPORTER_OTLP_ENDPOINT=http://${host}:4317${headers}`,
    },
  ];
}

export function EmptyState() {
  const page = usePage();
  return (
    <section class="empty" aria-label="No profiles yet">
      <h2>No profiles yet</h2>
      <p>This page shows the first one by itself, a moment after it arrives.</p>
      <Show when={page.agent.latest()}>{(agent) => <AgentCard agent={agent()} />}</Show>
      <Show when={page.agent.latest() === null}>
        <div class="card">
          <h3>No agent in this process</h3>
          <p>This server only receives. Send it a profile in one of these ways.</p>
        </div>
      </Show>
      <h3>Send a first profile</h3>
      <For each={ways()}>
        {(way) => (
          <div class="way">
            <div>
              <b>{way.title}</b> <span class="muted">{way.note}</span>
            </div>
            <div class="way-command">
              <code>{way.command}</code>
              <DoneButton label="Copy" done="Copied" act={() => copyText(way.command)} />
            </div>
          </div>
        )}
      </For>
    </section>
  );
}
