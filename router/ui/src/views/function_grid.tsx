// The functions as a table that is sortable, and filtered by the search. Only the visible rows are in the document.
//
// Screen readers read this table, so it exists in every view. In the view Flame, it is off the screen.

import { createEffect, createMemo, createSignal, createUniqueId, For, Index, on, onCleanup, onMount } from "solid-js";
import { formatValue, perCent, type Measure } from "../text/format";
import { sortRows, type FunctionTable, type SortKey } from "../profile/function_table";
import type { Matches } from "../profile/matches";
import { printable } from "../text/printable";
import type { ProfileTree } from "../profile/profile_tree";

const ROW_PX = 24;
/** Number of rows that are kept above and below the visible ones, so that scrolling shows no gap. */
const SPARE_ROWS = 6;

const COLUMNS: ReadonlyArray<{ readonly key: SortKey; readonly label: string }> = [
  { key: "name", label: "function" },
  { key: "self", label: "self" },
  { key: "total", label: "total" },
];

export interface FunctionGridProps {
  readonly tree: ProfileTree;
  readonly table: FunctionTable;
  readonly measure: Measure;
  readonly sort: SortKey;
  readonly descending: boolean;
  /** Matches of the search, which select the rows; null for all rows. */
  readonly filter: Matches | null;
  /** Text of the search. */
  readonly filterText: string;
  /** Name of the marked function; "" for none. */
  readonly pick: string;
  /** True if only screen readers see the table. */
  readonly offScreen: boolean;
  onSort(key: SortKey, descending: boolean): void;
  onPick(name: number): void;
  onZoom(name: number): void;
  onMenu(name: number, x: number, y: number): void;
}

export function FunctionGrid(props: FunctionGridProps) {
  let scroller!: HTMLDivElement;
  let space!: HTMLDivElement;
  const id = createUniqueId();
  const [top_px, setTop] = createSignal(0);
  const [height_px, setHeight] = createSignal(400);
  const [active, setActive] = createSignal(0);

  const sorted = createMemo(() => sortRows(props.table, props.tree.names, props.sort, props.descending));
  const rows = createMemo(() => {
    const { filter } = props;
    return filter === null ? sorted() : sorted().filter((name) => filter.names[name] === 1);
  });
  const first = () => Math.max(Math.floor(top_px() / ROW_PX) - SPARE_ROWS, 0);
  const last = () => Math.min(Math.ceil((top_px() + height_px()) / ROW_PX) + SPARE_ROWS, rows().length);
  const visible = createMemo(() => Array.from({ length: Math.max(last() - first(), 0) }, (_, i) => first() + i));
  const whole = () => props.tree.total[0];

  onMount(() => {
    const observer = new ResizeObserver(() => setHeight(scroller.clientHeight));
    observer.observe(scroller);
    onCleanup(() => observer.disconnect());
    createEffect(() => space.style.setProperty("height", `${rows().length * ROW_PX}px`));
    // After another order or filter, the table starts at the top. New values in the same order do not scroll it.
    createEffect(
      on(
        [() => props.sort, () => props.descending, () => props.filterText],
        () => {
          setActive(0);
          scroller.scrollTop = 0;
        },
        { defer: true },
      ),
    );
  });

  function moveTo(row: number): void {
    const to = Math.max(Math.min(row, rows().length - 1), 0);
    setActive(to);
    const top = to * ROW_PX;
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    else if (top + ROW_PX > scroller.scrollTop + scroller.clientHeight)
      scroller.scrollTop = top + ROW_PX - scroller.clientHeight;
  }

  function onKeyDown(event: KeyboardEvent): void {
    const pageRows = Math.max(Math.floor(scroller.clientHeight / ROW_PX) - 1, 1);
    const moves: Record<string, number> = {
      ArrowDown: active() + 1,
      ArrowUp: active() - 1,
      PageDown: active() + pageRows,
      PageUp: active() - pageRows,
      Home: 0,
      End: rows().length,
    };
    const name = rows()[active()];
    if (event.key in moves) moveTo(moves[event.key]);
    else if (name === undefined) return;
    else if (event.key === "Enter" && event.shiftKey) props.onZoom(name);
    else if (event.key === "Enter" || event.key === " ") props.onPick(name);
    else if (event.key === "ContextMenu" || (event.key === "F10" && event.shiftKey)) {
      const corner = scroller.getBoundingClientRect();
      props.onMenu(name, corner.left + 24, corner.top + (active() + 1) * ROW_PX - scroller.scrollTop);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  return (
    <div
      class="grid"
      classList={{ "off-screen": props.offScreen }}
      role="grid"
      aria-label="Functions"
      aria-rowcount={rows().length + 1}
    >
      <div class="grid-head" role="row">
        <For each={COLUMNS}>
          {(column) => (
            <div
              role="columnheader"
              class={`grid-${column.key}`}
              aria-sort={props.sort === column.key ? (props.descending ? "descending" : "ascending") : "none"}
            >
              <button
                type="button"
                tabindex={props.offScreen ? -1 : 0}
                onClick={() =>
                  props.onSort(column.key, props.sort === column.key ? !props.descending : column.key !== "name")
                }
              >
                {column.label}
                <span aria-hidden="true">{props.sort === column.key ? (props.descending ? " ↓" : " ↑") : ""}</span>
              </button>
            </div>
          )}
        </For>
      </div>
      <div
        class="grid-scroller"
        ref={scroller}
        tabindex={props.offScreen ? -1 : 0}
        role="rowgroup"
        aria-label="Functions"
        aria-activedescendant={rows().length > 0 ? `${id}-${active()}` : undefined}
        onScroll={() => setTop(scroller.scrollTop)}
        onKeyDown={onKeyDown}
      >
        <div class="grid-space" ref={space}>
          <Index each={visible()}>
            {(row) => {
              const name = () => rows()[row()];
              return (
                <div
                  role="row"
                  id={`${id}-${row()}`}
                  class="grid-row"
                  classList={{ active: row() === active(), picked: props.tree.names[name()] === props.pick }}
                  aria-rowindex={row() + 2}
                  aria-selected={props.tree.names[name()] === props.pick}
                  data-self={props.table.self[name()]}
                  data-total={props.table.total[name()]}
                  ref={(element) =>
                    createEffect(() => element.style.setProperty("transform", `translateY(${row() * ROW_PX}px)`))
                  }
                  onClick={() => {
                    setActive(row());
                    props.onPick(name());
                  }}
                  onDblClick={() => props.onZoom(name())}
                  onContextMenu={(event) => {
                    event.preventDefault();
                    setActive(row());
                    props.onMenu(name(), event.clientX, event.clientY);
                  }}
                >
                  <div role="gridcell" class="grid-name" title={printable(props.tree.names[name()]).slice(0, 1000)}>
                    <bdi>{printable(props.tree.names[name()]).slice(0, 1000)}</bdi>
                  </div>
                  <ValueCell
                    class="grid-self"
                    value={props.table.self[name()]}
                    whole={whole()}
                    measure={props.measure}
                  />
                  <ValueCell
                    class="grid-total"
                    value={props.table.total[name()]}
                    whole={whole()}
                    measure={props.measure}
                  />
                </div>
              );
            }}
          </Index>
        </div>
      </div>
    </div>
  );
}

/** Cell with a value and its share of the whole. A bar below them shows the share too. */
function ValueCell(props: { class: string; value: number; whole: number; measure: Measure }) {
  const share = (): number => (props.whole > 0 ? Math.min((props.value / props.whole) * 100, 100) : 0);
  return (
    <div role="gridcell" class={props.class}>
      <i class="grid-bar" ref={(bar) => createEffect(() => bar.style.setProperty("width", `${share()}%`))} />
      <span class="grid-value">{formatValue(props.value, props.measure)}</span>
      <span class="grid-share">{perCent(props.value, props.whole)}</span>
    </div>
  );
}
