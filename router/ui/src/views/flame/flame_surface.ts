// Canvas of the flame graph: its visible part, its animation, and its drawing.
//
// This file does not use the UI framework, so that hover and zoom cost a few function calls and update no component.
// Every draw is recorded as a performance measure (`varve:flame-draw`, `varve:flame-first-draw`).

import { LabelFitter } from "./label_text";
import { characterMeasure, levelAt, mergedFill, NameColors, paintScene, ROW_PX, rowTop } from "./flame_painter";
import type { ThemeName } from "../../color/palette";
import type { Matches } from "../../profile/matches";
import { deepestBelow, type ProfileTree } from "../../profile/profile_tree";
import { runAt, type Run, type View } from "./runs";

/** The data to draw. */
export interface FlameInput {
  readonly tree: ProfileTree;
  readonly zoom: number;
  readonly matches: Matches | null;
  readonly flipped: boolean;
  readonly theme: ThemeName;
}

/** Duration of the animation of a zoom, in milliseconds. */
const ZOOM_MS = 180;
/** Number of rows of ancestors that stay visible above the zoomed frame. */
const ANCESTOR_ROWS = 3;
/** Number of measures after which the browser's list of measures is cleared, because a tab may stay open for weeks. */
const MEASURES_MAX = 2000;

let measures = 0;

/** Records the time since `start` (a time or the name of a mark) as the measure `name`. */
function record(name: string, start: number | string): void {
  if (++measures > MEASURES_MAX) {
    measures = 0;
    performance.clearMeasures();
  }
  performance.measure(name, { start, end: performance.now() });
}

/** Runs `act` and records its duration as the measure `name`. */
export function measured<T>(name: string, act: () => T): T {
  const start = performance.now();
  const result = act();
  record(name, start);
  return result;
}

/** A rectangle in the content, in CSS pixels. */
export interface Box {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
}

export class FlameSurface {
  private readonly fitter = new LabelFitter(characterMeasure());
  private readonly context: CanvasRenderingContext2D | null;
  private input: FlameInput | null = null;
  private colors: NameColors | null = null;
  private merged: CanvasPattern | string = "";
  private from = 0;
  private to = 1;
  private content_px = 0;
  private width_px = 0;
  private height_px = 0;
  private animation = 0;
  private redraw = 0;

  constructor(
    private readonly scroller: HTMLElement,
    private readonly space: HTMLElement,
    private readonly canvas: HTMLCanvasElement,
    /** Called when frames have moved, so that the boxes over them can follow. */
    private readonly onMoved: () => void,
  ) {
    this.context = canvas.getContext("2d");
  }

  /** Draws `input`; a zoom within the same tree is animated. */
  show(input: FlameInput): void {
    const before = this.input;
    const isNewTree = before?.tree !== input.tree;
    if (isNewTree || before?.theme !== input.theme) this.colors = new NameColors(input.tree, input.theme);
    if (this.context !== null && before?.theme !== input.theme) this.merged = mergedFill(this.context, input.theme);
    this.input = input;
    const { tree, zoom } = input;
    const from = tree.start[zoom];
    const to = from + Math.max(tree.total[zoom], Number.MIN_VALUE);
    const isZoom = !isNewTree && (before?.zoom !== zoom || before?.flipped !== input.flipped);
    this.fitContent();
    if (isNewTree) {
      this.jump(from, to);
      // This measure covers the time from the last byte of the response to its flame graph: parsing, layout and
      // drawing.
      record("varve:flame-first-draw", "varve:response-received");
    } else if (before?.zoom !== zoom) this.glide(from, to);
    else this.draw();
    if (isZoom || before === null) this.scrollToZoom();
  }

  /** Adapts the canvas to the size of the scroller. */
  resize(): void {
    const ratio = devicePixelRatio;
    this.width_px = this.scroller.clientWidth;
    this.height_px = this.scroller.clientHeight;
    this.canvas.width = Math.round(this.width_px * ratio);
    this.canvas.height = Math.round(this.height_px * ratio);
    this.canvas.style.setProperty("width", `${this.width_px}px`);
    this.canvas.style.setProperty("height", `${this.height_px}px`);
    this.context?.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.fitContent();
    this.draw();
  }

  /** Requests one draw in the next animation frame. Further calls before that frame have no effect. */
  requestDraw(): void {
    if (this.redraw !== 0) return;
    this.redraw = requestAnimationFrame(() => {
      this.redraw = 0;
      this.draw();
    });
  }

  /**
   * The run of frames at a point, with its level; null if there is none. `x` and `y` are CSS pixels from the scroller's
   * top left corner.
   */
  runAt(x: number, y: number): { run: Run; level: number } | null {
    if (this.input === null || this.animation !== 0) return null;
    const level = levelAt(y + this.scroller.scrollTop, this.content_px, this.input.flipped);
    const run = runAt(this.input.tree, level, this.view(), x);
    return run === null ? null : { run, level };
  }

  /** Box of a node, clipped to the view. */
  boxOf(node: number): Box | null {
    if (this.input === null) return null;
    const { tree, flipped } = this.input;
    const scale = this.width_px / (this.to - this.from);
    const left = (tree.start[node] - this.from) * scale;
    return this.box(tree.depth[node], left, left + tree.total[node] * scale, flipped);
  }

  /** Box of a run, clipped to the view. */
  boxOfRun(level: number, run: Run): Box | null {
    return this.input === null ? null : this.box(level, run.left, run.right, this.input.flipped);
  }

  /** Scrolls until a node's row is visible. */
  reveal(node: number): void {
    if (this.input === null) return;
    const top = rowTop(this.input.tree.depth[node], this.content_px, this.input.flipped);
    const bottom = top + ROW_PX;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (bottom > this.scroller.scrollTop + this.height_px) this.scroller.scrollTop = bottom - this.height_px;
  }

  dispose(): void {
    cancelAnimationFrame(this.animation);
    cancelAnimationFrame(this.redraw);
  }

  private box(level: number, left: number, right: number, flipped: boolean): Box {
    const from = Math.max(left, 0);
    const width = Math.max(Math.min(right, this.width_px) - from, 2);
    return { left: from, top: rowTop(level, this.content_px, flipped), width, height: ROW_PX - 1 };
  }

  private view(): View {
    return { from: this.from, to: this.to, width_px: Math.max(this.width_px, 1) };
  }

  /** Sets the height of the content to that of the rows below the zoomed frame. */
  private fitContent(): void {
    if (this.input === null) return;
    const rows = deepestBelow(this.input.tree, this.input.zoom) + 1;
    this.content_px = Math.max(rows * ROW_PX, this.height_px);
    this.space.style.setProperty("height", `${this.content_px}px`);
  }

  private scrollToZoom(): void {
    if (this.input === null) return;
    const { tree, zoom, flipped } = this.input;
    const top = rowTop(tree.depth[zoom], this.content_px, flipped);
    const margin = ANCESTOR_ROWS * ROW_PX;
    this.scroller.scrollTop = flipped ? top + ROW_PX + margin - this.height_px : top - margin;
  }

  private jump(from: number, to: number): void {
    cancelAnimationFrame(this.animation);
    this.animation = 0;
    this.from = from;
    this.to = to;
    this.draw();
  }

  private glide(from: number, to: number): void {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return this.jump(from, to);
    cancelAnimationFrame(this.animation);
    const startFrom = this.from;
    const startTo = this.to;
    const start_ms = performance.now();
    const next = (): void => {
      const done = Math.min((performance.now() - start_ms) / ZOOM_MS, 1);
      if (done === 1) return this.jump(from, to);
      const eased = 1 - (1 - done) ** 3;
      this.from = startFrom + (from - startFrom) * eased;
      this.to = startTo + (to - startTo) * eased;
      this.draw();
      this.animation = requestAnimationFrame(next);
    };
    this.animation = requestAnimationFrame(next);
  }

  private draw(): void {
    const { input, context, colors } = this;
    if (input === null || context === null || colors === null || this.width_px === 0) return;
    measured("varve:flame-draw", () =>
      paintScene(
        context,
        {
          ...input,
          colors,
          merged: this.merged,
          view: this.view(),
          top_px: this.scroller.scrollTop,
          height_px: this.height_px,
          content_px: this.content_px,
        },
        this.fitter,
      ),
    );
    this.onMoved();
  }
}
