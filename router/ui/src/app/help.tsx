// Dialog with the keyboard shortcuts.

import { For } from "solid-js";
import { Dialog } from "../widgets/dialog";

const KEYS: ReadonlyArray<readonly [string, string]> = [
  ["/", "search functions; Esc clears the search"],
  ["f", "flip the flame graph: root at the top or at the bottom"],
  ["t", "switch between light and dark"],
  ["?", "show this help"],
  ["↑ ↓ ← →", "move in the flame graph or the table"],
  ["Enter", "flame graph: zoom; table: mark the function in the flame graph"],
  ["Shift Enter", "table: zoom to the widest frame of the function"],
  ["Esc", "flame graph: return to the previous zoom"],
  ["Shift F10", "open the menu of the frame: copy, show or hide its stacks"],
];

export function Help(props: { onClose(): void }) {
  return (
    <Dialog title="Keys" onClose={props.onClose}>
      <dl class="keys">
        <For each={KEYS}>
          {([key, action]) => (
            <>
              <dt>
                <kbd>{key}</kbd>
              </dt>
              <dd>{action}</dd>
            </>
          )}
        </For>
      </dl>
      <p class="muted">
        Click a frame to zoom, or right-click it for its menu. Drag over the timeline to zoom in time. The address
        contains every setting: Back returns to the previous view, and “Copy link” fixes the times. A time range
        excludes its start and includes its end.
      </p>
    </Dialog>
  );
}
