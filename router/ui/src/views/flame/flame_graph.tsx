// The flame graph, with its pointer, keyboard and tooltip.
//
// The canvas is not redrawn on hover. Two boxes above it mark the frame under the pointer and the frame of the
// keyboard.

import { createEffect, createSignal, on, onCleanup, onMount, Show } from "solid-js";
import type { FlameResponse } from "../../api/flame_graph";
import { ROW_PX } from "./flame_painter";
import { FlameSurface, measured, type Box } from "./flame_surface";
import { FrameTooltip, type Pointed } from "./frame_tooltip";
import { isArrow, walk } from "./frame_walk";
import type { ThemeName } from "../../color/palette";
import type { Matches } from "../../profile/matches";
import { printable } from "../../text/printable";
import { nodeOfZoomKey, zoomKey } from "../../profile/zoom_key";
import { perCent } from "../../text/format";

export interface FlameGraphProps {
  readonly response: FlameResponse;
  readonly zoom: number;
  readonly matches: Matches | null;
  readonly flipped: boolean;
  readonly theme: ThemeName;
  onZoom(node: number): void;
  onBack(): void;
  /** Opens the menu of `node` at a point of the window. */
  onMenu(node: number, x: number, y: number): void;
}

export function FlameGraph(props: FlameGraphProps) {
  let scroller!: HTMLDivElement;
  let space!: HTMLDivElement;
  let canvas!: HTMLCanvasElement;
  let hoverBox!: HTMLDivElement;
  let focusBox!: HTMLDivElement;
  let surface: FlameSurface | undefined;
  let focusedKey = "";
  const [hovered, setHovered] = createSignal<Pointed | null>(null);
  const [focused, setFocused] = createSignal(0);
  const [hasFocus, setHasFocus] = createSignal(false);
  const [byKeyboard, setByKeyboard] = createSignal(false);
  const tree = () => props.response.tree;

  const placeFocusBox = (): void =>
    place(focusBox, hasFocus() && byKeyboard() ? (surface?.boxOf(focused()) ?? null) : null);

  onMount(() => {
    surface = new FlameSurface(scroller, space, canvas, placeFocusBox);
    const observer = new ResizeObserver(() => surface?.resize());
    observer.observe(scroller);
    surface.resize();
    onCleanup(() => {
      observer.disconnect();
      surface?.dispose();
    });
    createEffect(() => {
      surface?.show({
        tree: tree(),
        zoom: props.zoom,
        matches: props.matches,
        flipped: props.flipped,
        theme: props.theme,
      });
    });
    createEffect(on([focused, hasFocus, byKeyboard], placeFocusBox));
    // Node numbers change with every response, so the frame under the pointer is looked up again.
    createEffect(on([tree, () => props.zoom], pointAgain, { defer: true }));
    createEffect(
      on(
        tree,
        () => {
          const found = nodeOfZoomKey(tree(), focusedKey);
          setFocused(found < 0 ? props.zoom : found);
        },
        { defer: true },
      ),
    );
    // After a zoom by other means, such as the table, the keyboard continues from the zoomed frame.
    createEffect(
      on(
        () => props.zoom,
        (zoom) => {
          if (focused() < zoom || focused() >= tree().end[zoom]) focusOn(zoom);
        },
      ),
    );
  });

  function leave(): void {
    setHovered(null);
    place(hoverBox, null);
  }

  function pointAgain(): void {
    const last = hovered();
    leave();
    if (last !== null) setHovered(point({ clientX: last.x, clientY: last.y }));
  }

  function focusOn(node: number): void {
    focusedKey = zoomKey(tree(), node);
    setFocused(node);
  }

  function point(event: { clientX: number; clientY: number }): Pointed | null {
    const corner = scroller.getBoundingClientRect();
    const found = surface?.runAt(event.clientX - corner.left, event.clientY - corner.top);
    if (!found || !surface) return null;
    const { run, level } = found;
    place(hoverBox, surface.boxOfRun(level, run));
    return { first: run.first, count: run.merged ? run.last - run.first : 1, x: event.clientX, y: event.clientY };
  }

  function onPointerMove(event: PointerEvent): void {
    measured("varve:flame-hover", () => {
      const pointed = point(event);
      if (pointed === null) return leave();
      setByKeyboard(false);
      setHovered(pointed);
    });
  }

  /** The widest of the frames that are merged under the pointer. */
  function nodeOf({ first, count }: Pointed): number {
    const { levelNodes, total } = tree();
    let widest = levelNodes[first];
    for (let at = first; at < first + count; at++) if (total[levelNodes[at]] > total[widest]) widest = levelNodes[at];
    return widest;
  }

  function onClick(event: MouseEvent): void {
    const pointed = point(event);
    if (pointed === null) return;
    const node = nodeOf(pointed);
    focusOn(node);
    props.onZoom(node);
  }

  function onContextMenu(event: MouseEvent): void {
    event.preventDefault();
    const pointed = point(event);
    if (pointed === null) return;
    leave();
    props.onMenu(nodeOf(pointed), event.clientX, event.clientY);
  }

  function onKeyDown(event: KeyboardEvent): void {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (isArrow(event.key)) {
      const next = walk(tree(), focused(), event.key, props.flipped, props.zoom);
      setByKeyboard(true);
      leave();
      focusOn(next);
      surface?.reveal(next);
    } else if (event.key === "Enter") props.onZoom(focused());
    else if (event.key === "Escape") props.onBack();
    else if (event.key === "ContextMenu" || (event.key === "F10" && event.shiftKey)) {
      const box = surface?.boxOf(focused());
      const corner = scroller.getBoundingClientRect();
      if (box) props.onMenu(focused(), corner.left + box.left + 8, corner.top + box.top + ROW_PX - scroller.scrollTop);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Position of the tooltip of the keyboard's frame: below that frame. */
  const focusPoint = (): Pointed | null => {
    if (!hasFocus() || !byKeyboard()) return null;
    const box = surface?.boxOf(focused());
    if (!box) return null;
    const corner = scroller.getBoundingClientRect();
    const { levelFrom, levelNodes, depth } = tree();
    const level = depth[focused()];
    const first = levelNodes.indexOf(focused(), levelFrom[level]);
    return { first, count: 1, x: corner.left + box.left, y: corner.top + box.top + ROW_PX - scroller.scrollTop };
  };

  const spoken = (): string => {
    if (!hasFocus() || !byKeyboard()) return "";
    const node = focused();
    const name = printable(tree().names[tree().name[node]]).slice(0, 200);
    return `${name}, ${perCent(tree().total[node], tree().total[0])} of all`;
  };

  return (
    <div class="flame">
      <div
        class="flame-scroller"
        ref={scroller}
        tabindex="0"
        role="application"
        aria-label="Flame graph. Arrow keys move, Enter zooms, Escape goes back. The table holds the same functions."
        data-row-height={ROW_PX}
        onScroll={() => surface?.requestDraw()}
        onPointerMove={onPointerMove}
        onPointerLeave={leave}
        onClick={onClick}
        onContextMenu={onContextMenu}
        onKeyDown={onKeyDown}
        onFocus={() => {
          setHasFocus(true);
          setByKeyboard(scroller.matches(":focus-visible"));
        }}
        onBlur={() => setHasFocus(false)}
      >
        <div class="flame-space" ref={space}>
          <canvas class="flame-canvas" ref={canvas} aria-hidden="true" />
          <div class="flame-hover-box" ref={hoverBox} hidden />
          <div class="flame-focus-box" ref={focusBox} hidden />
        </div>
      </div>
      <div class="off-screen" aria-live="polite">
        {spoken()}
      </div>
      <Show when={hovered() ?? focusPoint()}>
        {(pointed) => <FrameTooltip response={props.response} pointed={pointed()} />}
      </Show>
    </div>
  );
}

/** Moves an element over a box of the canvas; null hides it. */
function place(element: HTMLElement, box: Box | null): void {
  element.hidden = box === null;
  if (box === null) return;
  element.style.setProperty("transform", `translate(${box.left}px, ${box.top}px)`);
  element.style.setProperty("width", `${box.width}px`);
  element.style.setProperty("height", `${box.height}px`);
}
