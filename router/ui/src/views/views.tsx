// The views of a response: table, flame graph, or both. All share the zoom, the search and the marked function.

import { createDeferred, createMemo, createSignal, Show } from "solid-js";
import type { FlameResponse } from "../api/flame_graph";
import type { Theme } from "../color/theme";
import { tabulate } from "../profile/function_table";
import type { Matches } from "../profile/matches";
import { widestFrame } from "../profile/profile_tree";
import { nodeOfZoomKey, zoomKey } from "../profile/zoom_key";
import { useStore } from "../state/app_store";
import { printable } from "../text/printable";
import { ContextMenu } from "../widgets/context_menu";
import { Breadcrumb } from "./breadcrumb";
import { ColorLegend } from "./color_legend";
import { FlameGraph } from "./flame/flame_graph";
import { frameMenu } from "./frame_menu";
import { FunctionGrid } from "./function_grid";

/** A frame with an open menu, and the position of the menu in the window. */
interface MenuTarget {
  readonly node: number;
  readonly x: number;
  readonly y: number;
}

export function Views(props: { response: FlameResponse; matches: Matches | null; theme: Theme }) {
  const store = useStore();
  const tree = () => props.response.tree;
  const [target, setTarget] = createSignal<MenuTarget | null>(null);
  // Keys of earlier zooms, to which Escape returns.
  const previousZooms: string[] = [];

  const zoom = createMemo(() => Math.max(nodeOfZoomKey(tree(), store.state.zoom), 0));
  // The flame graph is drawn first. The table and the legend follow later, and always show the same response.
  const deferred = createDeferred(
    () => ({
      response: props.response,
      zoom: zoom(),
      filter: store.state.search === "" ? null : props.matches,
    }),
    { timeoutMs: 100 },
  );
  const table = createMemo(() => {
    const of = deferred();
    return { ...of, rows: tabulate(of.response.tree, of.zoom) };
  });

  function zoomTo(node: number): void {
    const key = zoomKey(tree(), node);
    if (key === store.state.zoom) return;
    previousZooms.push(store.state.zoom);
    store.navigate({ zoom: key });
  }

  function zoomBack(): void {
    store.navigate({ zoom: previousZooms.pop() ?? "" });
  }

  /** Name of a row of the table. The flame graph may already show a newer response, in which the indices differ. */
  const nameOfRow = (row: number): string => table().response.tree.names[row];
  const frameOfRow = (row: number): number => widestFrame(tree(), nameOfRow(row), zoom());

  const openMenu = (node: number, x: number, y: number): void => void setTarget({ node, x, y });

  return (
    <>
      <div class="position">
        <Breadcrumb tree={tree()} zoom={zoom()} onZoom={zoomTo} />
        <Show when={store.state.view !== "table"}>
          <ColorLegend tree={deferred().response.tree} theme={props.theme.name()} />
        </Show>
      </div>
      <main class={`views view-${store.state.view}`} classList={{ stale: store.flame.slow() }}>
        <FunctionGrid
          tree={table().response.tree}
          table={table().rows}
          measure={table().response.measure}
          sort={store.state.sort}
          descending={store.state.descending}
          filter={table().filter}
          filterText={store.state.search}
          pick={store.state.pick}
          offScreen={store.state.view === "flame"}
          onSort={(sort, descending) => store.navigate({ sort, descending }, "replace")}
          onPick={(row) => store.navigate({ pick: nameOfRow(row) === store.state.pick ? "" : nameOfRow(row) })}
          onZoom={(row) => zoomTo(frameOfRow(row))}
          onMenu={(row, x, y) => openMenu(frameOfRow(row), x, y)}
        />
        <Show when={store.state.view !== "table"}>
          <FlameGraph
            response={props.response}
            zoom={zoom()}
            matches={props.matches}
            flipped={store.state.flip}
            theme={props.theme.name()}
            onZoom={zoomTo}
            onBack={zoomBack}
            onMenu={openMenu}
          />
        </Show>
      </main>
      <Show when={target()}>
        {(open) => (
          <ContextMenu
            title={printable(tree().names[tree().name[open().node]]).slice(0, 200)}
            items={frameMenu(tree(), open().node, store, zoomTo)}
            x={open().x}
            y={open().y}
            onClose={() => setTarget(null)}
          />
        )}
      </Show>
    </>
  );
}
