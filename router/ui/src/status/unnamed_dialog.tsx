// Dialog that lists frames without a name and incomplete stacks, by reason and binary, and says what the user can do.

import { For, Show } from "solid-js";
import type { FlameResponse } from "../api/flame_graph";
import { nameCounts, reasonText, type UnnamedFrames } from "../profile/unnamed_frames";
import { wireNumber } from "../profile/wire_integer";
import { formatValue, groupDigits, perCent } from "../text/format";
import { printable } from "../text/printable";
import { Dialog } from "../widgets/dialog";

interface DialogProps {
  readonly response: FlameResponse;
  onClose(): void;
}

export function UnnamedDialog(props: DialogProps) {
  const counts = () => nameCounts(props.response.symbolization);
  return (
    <Dialog title="Frames without a name" onClose={props.onClose}>
      <p>
        {groupDigits(String(counts().frames - counts().named))} of {groupDigits(String(counts().frames))} frames have no
        name. Their values are included in every sum.
      </p>
      <ReasonTable response={props.response} reasons={counts().unnamed} />
    </Dialog>
  );
}

export function IncompleteDialog(props: DialogProps) {
  return (
    <Dialog title="Incomplete stacks" onClose={props.onClose}>
      <p>
        The sender's unwinder stopped before the end of these stacks, so that callers are missing. Their values are
        included in every sum.
      </p>
      <ReasonTable response={props.response} reasons={nameCounts(props.response.symbolization).stopped} />
    </Dialog>
  );
}

function ReasonTable(props: { response: FlameResponse; reasons: readonly UnnamedFrames[] }) {
  const largestFirst = () => [...props.reasons].sort((a, b) => wireNumber(b.value) - wireNumber(a.value));
  return (
    <table class="reasons">
      <thead>
        <tr>
          <th>reason</th>
          <th>binary</th>
          <th class="number">frames</th>
          <th class="number">stacks through them</th>
        </tr>
      </thead>
      <tbody>
        <For each={largestFirst()}>
          {(entry) => (
            <tr>
              <td>{printable(reasonText(entry))}</td>
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
  );
}
