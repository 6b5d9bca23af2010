// The answer: table, flame graph, or both; what is zoomed to, searched and picked.

import { createDeferred, createMemo, createSignal, Show } from "solid-js";
import type { FlameAnswer } from "../api/flame_graph";
import { Breadcrumb } from "./breadcrumb";
import { ColorLegend } from "./color_legend";
import { FlameGraph } from "./flame/flame_graph";
import { FunctionGrid } from "./function_grid";
import { tabulate } from "../profile/function_table";
import type { Matches } from "../profile/matches";
import { printable } from "../text/printable";
import { nodeOfZoomKey, zoomKey } from "../profile/zoom_key";
import { ContextMenu, type MenuItem } from "../widgets/context_menu";
import { copyText } from "../widgets/clipboard";
import { usePage } from "../state/app_store";
import type { Theme } from "../color/theme";

/** A function or one of its frames, with a menu open. */
interface MenuTarget {
  readonly name: number;
  readonly node: number;
  readonly x: number;
  readonly y: number;
}

export function Picture(props: { answer: FlameAnswer; matches: Matches | null; theme: Theme }) {
  const page = usePage();
  const tree = () => props.answer.tree;
  const [target, setTarget] = createSignal<MenuTarget | null>(null);
  // Zooms before the present one, for Escape.
  const before: string[] = [];

  const zoom = createMemo(() => Math.max(nodeOfZoomKey(tree(), page.state.zoom), 0));
  // The flame graph is drawn first; what stands beside it follows a moment later, all from one answer.
  const beside = createDeferred(() => ({ answer: props.answer, zoom: zoom(), filter: page.state.search === "" ? null : props.matches }), { timeoutMs: 100 });
  const table = createMemo(() => ({ of: beside(), rows: tabulate(beside().answer.tree, beside().zoom) }));

  function zoomTo(node: number): void {
    const key = zoomKey(tree(), node);
    if (key === page.state.zoom) return;
    before.push(page.state.zoom);
    page.navigate({ zoom: key });
  }

  function zoomBack(): void {
    page.navigate({ zoom: before.pop() ?? "" });
  }

  /** A name of the table's answer: the flame graph may be one answer ahead, with other numbers. */
  const nameOf = (name: number): string => table().of.answer.tree.names[name];

  /** The widest frame of a function, inside the zoom if it has one there. */
  function widestFrame(text: string): number {
    const { names, name, total, end, size } = tree();
    const widestIn = (from: number, to: number): number => {
      let widest = -1;
      for (let node = from; node < to; node++) if (names[name[node]] === text && (widest < 0 || total[node] > total[widest])) widest = node;
      return widest;
    };
    const inside = widestIn(zoom() + 1, end[zoom()]);
    return inside >= 0 ? inside : Math.max(widestIn(0, size), 0);
  }

  function openMenu(node: number, x: number, y: number): void {
    page.setHeld(true);
    setTarget({ name: tree().name[node], node, x, y });
  }

  function closeMenu(): void {
    page.setHeld(false);
    setTarget(null);
  }

  function items({ name, node }: MenuTarget): MenuItem[] {
    const text = tree().names[name];
    const frame = tree().frames[name] ?? {};
    const place = frame.file === undefined ? "" : frame.line === undefined ? frame.file : `${frame.file}:${frame.line}`;
    const list: MenuItem[] = [{ label: "Zoom", hint: "Enter", act: () => zoomTo(node) }];
    list.push({ label: "Copy name", act: () => void copyText(text) });
    if (place !== "") list.push({ label: "Copy file and line", act: () => void copyText(place) });
    if (frame.binary) list.push({ label: "Copy binary", act: () => void copyText(frame.binary ?? "") });
    if (name !== tree().name[0] && text !== "(other)") {
      list.push({ label: "Only stacks with it", act: () => page.addMatcher({ label: "stack_function", operator: "=", value: text }) });
      list.push({ label: "Hide stacks with it", act: () => page.addMatcher({ label: "stack_function", operator: "!=", value: text }) });
    }
    return list;
  }

  return (
    <>
      <div class="where">
        <Breadcrumb tree={tree()} zoom={zoom()} onZoom={zoomTo} />
        <Show when={page.state.view !== "table"}>
          <ColorLegend tree={beside().answer.tree} theme={props.theme.name()} />
        </Show>
      </div>
      <main class={`picture view-${page.state.view}`} classList={{ stale: page.flame.slow() }}>
        <FunctionGrid
          tree={table().of.answer.tree}
          table={table().rows}
          measure={table().of.answer.measure}
          sort={page.state.sort}
          descending={page.state.descending}
          filter={table().of.filter}
          filterText={page.state.search}
          pick={page.state.pick}
          offScreen={page.state.view === "flame"}
          onSort={(sort, descending) => page.navigate({ sort, descending }, "replace")}
          onPick={(name) => page.navigate({ pick: nameOf(name) === page.state.pick ? "" : nameOf(name) })}
          onZoom={(name) => zoomTo(widestFrame(nameOf(name)))}
          onMenu={(name, x, y) => openMenu(widestFrame(nameOf(name)), x, y)}
        />
        <Show when={page.state.view !== "table"}>
          <FlameGraph
            answer={props.answer}
            zoom={zoom()}
            matches={props.matches}
            flipped={page.state.flip}
            theme={props.theme.name()}
            onZoom={zoomTo}
            onBack={zoomBack}
            onMenu={openMenu}
          />
        </Show>
      </main>
      <Show when={target()}>
        {(open) => (
          <ContextMenu title={printable(tree().names[open().name]).slice(0, 200)} items={items(open())} x={open().x} y={open().y} onClose={closeMenu} />
        )}
      </Show>
    </>
  );
}
