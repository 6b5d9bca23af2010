// Path from the root to the zoomed frame; each step is a button.

import { createMemo, For, Show } from "solid-js";
import { printable } from "../text/printable";
import { pathTo, type ProfileTree } from "../profile/profile_tree";

/** Number of steps that are shown at the end of a long path. */
const TAIL = 4;

export function Breadcrumb(props: { tree: ProfileTree; zoom: number; onZoom(node: number): void }) {
  const path = createMemo(() => pathTo(props.tree, props.zoom));
  const tail = createMemo(() => (path().length <= TAIL + 1 ? path().slice(1) : path().slice(-TAIL)));
  const hidden = () => path().length - 1 - tail().length;
  const name = (node: number): string => printable(props.tree.names[props.tree.name[node]]).slice(0, 300);
  return (
    <nav class="breadcrumb" aria-label="Zoom">
      <button type="button" onClick={() => props.onZoom(0)} disabled={props.zoom === 0}>
        root
      </button>
      <Show when={hidden() > 0}>
        <span class="crumb-gap" title={`${hidden()} frames not shown`}>
          › … {hidden()}
        </span>
      </Show>
      <For each={tail()}>
        {(node) => (
          <>
            <span class="crumb-gap">›</span>
            <button
              type="button"
              aria-current={node === props.zoom ? "location" : undefined}
              title={name(node)}
              onClick={() => props.onZoom(node)}
            >
              {name(node)}
            </button>
          </>
        )}
      </For>
    </nav>
  );
}
