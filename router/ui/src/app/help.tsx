// What the keys do.

import { For } from "solid-js";
import { Dialog } from "../widgets/dialog";
import { usePage } from "../state/app_store";

const KEYS: ReadonlyArray<readonly [string, string]> = [
  ["/", "search functions; Esc clears"],
  ["f", "flip: root at the top or the bottom"],
  ["t", "light or dark"],
  ["?", "this help"],
  ["↑ ↓ ← →", "in the flame graph: move; in the table: move"],
  ["Enter", "in the flame graph: zoom; in the table: mark the function in the flame graph"],
  ["Shift Enter", "in the table: zoom to the function's widest frame"],
  ["Esc", "in the flame graph: back to the zoom before"],
  ["Shift F10", "menu of the frame: copy, only stacks with it, hide them"],
];

export function Help(props: { onClose(): void }) {
  const page = usePage();
  return (
    <Dialog title="Keys" onClose={props.onClose} page={page}>
      <dl class="keys">
        <For each={KEYS}>
          {([key, meaning]) => (
            <>
              <dt>
                <kbd>{key}</kbd>
              </dt>
              <dd>{meaning}</dd>
            </>
          )}
        </For>
      </dl>
      <p class="muted">
        Click a frame to zoom, right-click it for its menu. Drag over the timeline to zoom in time. Everything you choose is in the address: Back goes
        back, and “Copy link” fixes the times. Windows are (after, until].
      </p>
    </Dialog>
  );
}
