// The frames without a name, by reason and binary, with what the user can do.

import { For, Show } from "solid-js";
import type { FlameResponse } from "../api/flame_graph";
import { wireNumber } from "../profile/wire_integer";
import { formatValue, groupDigits, perCent } from "../text/format";
import { printable } from "../text/printable";
import { Dialog } from "../widgets/dialog";

export function UnnamedDialog(props: { response: FlameResponse; onClose(): void }) {
  const symbolization = () => props.response.symbolization;
  const count = () => symbolization().frames - symbolization().named;
  const largestFirst = () => [...symbolization().unnamed].sort((a, b) => wireNumber(b.value) - wireNumber(a.value));
  return (
    <Dialog title="Frames without a name" onClose={props.onClose}>
      <p>
        {groupDigits(String(count()))} of {groupDigits(String(symbolization().frames))} frames have no name. Their
        values are included in every sum.
      </p>
      <table class="reasons">
        <thead>
          <tr>
            <th>reason</th>
            <th>binary</th>
            <th class="number">frames</th>
            <th class="number">value</th>
          </tr>
        </thead>
        <tbody>
          <For each={largestFirst()}>
            {(entry) => (
              <tr>
                <td>{printable(entry.text || entry.reason)}</td>
                <td class="code">
                  {printable(entry.binary ?? "")}
                  <Show when={entry.build_id}>{(buildId) => <div class="muted">{printable(buildId())}</div>}</Show>
                </td>
                <td class="number">{groupDigits(String(entry.frames))}</td>
                <td class="number">
                  {formatValue(wireNumber(entry.value), props.response.measure)}
                  <div class="muted">{perCent(wireNumber(entry.value), props.response.total)}</div>
                </td>
              </tr>
            )}
          </For>
        </tbody>
      </table>
    </Dialog>
  );
}
