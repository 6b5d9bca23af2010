// Draws the visible rows of a flame graph on a canvas.
//
// Cost depends on pixels, not on nodes: rows outside the view are not visited, and a row is at most
// one rectangle per pixel (see `runs.ts`). Text is drawn after all rectangles, so that the canvas
// changes its state twice a row and not twice a frame.

import { colorClass, frameColor, PALETTES, type ThemeName } from "../../color/frame_color";
import type { LabelFitter } from "./label_text";
import type { Matches } from "../../profile/matches";
import { printable } from "../../text/printable";
import type { ProfileTree } from "../../profile/profile_tree";
import { visitRuns, type View } from "./runs";

/** Height of one row, in CSS pixels. */
export const ROW_PX = 20;
export const LABEL_FONT = '12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
/** A frame narrower than this has no label. */
const LABEL_WIDTH_MIN_PX = 24;
const LABEL_PADDING_PX = 4;
/** Longest part of a name that could fit on any screen; the rest is not even measured. */
const LABEL_LENGTH_MAX = 600;

export interface Scene {
  readonly tree: ProfileTree;
  readonly view: View;
  /** Frame zoomed to: what lies above it is drawn pale. */
  readonly zoom: number;
  /** Scroll offset and height of what is seen, and height of the whole, in CSS pixels. */
  readonly top_px: number;
  readonly height_px: number;
  readonly content_px: number;
  readonly flipped: boolean;
  readonly matches: Matches | null;
  readonly colors: NameColors;
  /** Fill of merged frames. */
  readonly merged: CanvasPattern | string;
  readonly theme: ThemeName;
}

/** Stripes, so that many narrow frames look like many and not like one without a name. */
export function mergedFill(context: CanvasRenderingContext2D, theme: ThemeName): CanvasPattern | string {
  const [dark, light] = PALETTES[theme].merged;
  const tile = document.createElement("canvas");
  tile.width = 4;
  tile.height = 1;
  const paint = tile.getContext("2d");
  if (paint === null) return dark;
  paint.fillStyle = light;
  paint.fillRect(0, 0, 4, 1);
  paint.fillStyle = dark;
  paint.fillRect(0, 0, 2, 1);
  return context.createPattern(tile, "repeat") ?? dark;
}

/** Colours by name index, made when first drawn: a screen shows few of 100,000 names. */
export class NameColors {
  private readonly known: Array<string | undefined>;

  constructor(
    private readonly tree: ProfileTree,
    private readonly theme: ThemeName,
  ) {
    this.known = new Array<string | undefined>(tree.names.length);
  }

  of(name: number): string {
    const known = this.known[name];
    if (known !== undefined) return known;
    const { names, frames } = this.tree;
    const isPlain = name === this.tree.name[0] || (names[name] === "(other)" && colorClass(frames[name]) === "unknown");
    const color = isPlain ? PALETTES[this.theme].root : frameColor(names[name], frames[name], this.theme);
    this.known[name] = color;
    return color;
  }
}

/** Top of a level's row in the content, in CSS pixels. */
export function rowTop(level: number, content_px: number, flipped: boolean): number {
  return flipped ? content_px - (level + 1) * ROW_PX : level * ROW_PX;
}

/** Level at `y` in the content; may lie outside the tree. */
export function levelAt(y: number, content_px: number, flipped: boolean): number {
  return Math.floor((flipped ? content_px - y : y) / ROW_PX);
}

interface Label {
  readonly text: string;
  readonly x: number;
  readonly y: number;
  readonly faded: boolean;
}

/** Draws the scene; the context is scaled to CSS pixels. */
export function paintScene(context: CanvasRenderingContext2D, scene: Scene, fitter: LabelFitter): void {
  const { tree, view, top_px, height_px, content_px, flipped } = scene;
  context.clearRect(0, 0, view.width_px, height_px);
  const one = levelAt(top_px, content_px, flipped);
  const other = levelAt(top_px + height_px, content_px, flipped);
  const first = Math.max(Math.min(one, other), 0);
  const last = Math.min(Math.max(one, other), tree.levels - 1);
  const labels: Label[] = [];
  for (let level = first; level <= last; level++) {
    paintLevel(context, scene, level, rowTop(level, content_px, flipped) - top_px, fitter, labels);
  }
  paintLabels(context, scene.theme, labels);
}

function paintLevel(context: CanvasRenderingContext2D, scene: Scene, level: number, y: number, fitter: LabelFitter, labels: Label[]): void {
  const { tree, view, matches, colors } = scene;
  const palette = PALETTES[scene.theme];
  const isAbove = level < tree.depth[scene.zoom];
  let present: CanvasPattern | string = "";
  visitRuns(tree, level, view, (first, last, left, right, merged) => {
    const name = tree.name[tree.levelNodes[first]];
    const faded = matches !== null && matches.before[last] === matches.before[first];
    const color = faded ? palette.faded : merged && matches === null ? scene.merged : colors.of(merged ? firstMatch(scene, first, last) : name);
    if (color !== present) {
      context.fillStyle = color;
      present = color;
    }
    // Far ends are cut off: a canvas loses precision at a million pixels.
    const from = Math.max(left, -2);
    const to = Math.min(right, view.width_px + 2);
    const gap = to - from > 3 ? 1 : 0;
    if (isAbove) context.globalAlpha = 0.55;
    context.fillRect(from, y, to - from - gap, ROW_PX - 1);
    if (isAbove) context.globalAlpha = 1;
    if (merged || to - from < LABEL_WIDTH_MIN_PX) return;
    const x = Math.max(left, 0) + LABEL_PADDING_PX;
    const text = fitter.fit(printable(tree.names[name].slice(0, LABEL_LENGTH_MAX)), Math.min(right, view.width_px) - x - LABEL_PADDING_PX);
    if (text !== "") labels.push({ text, x, y, faded });
  });
}

/** Name of the first frame of a run that matches: the run has its colour. */
function firstMatch({ tree, matches }: Scene, first: number, last: number): number {
  if (matches === null) return tree.name[tree.levelNodes[first]];
  for (let at = first; at < last; at++) {
    const name = tree.name[tree.levelNodes[at]];
    if (matches.names[name]) return name;
  }
  return tree.name[tree.levelNodes[first]];
}

function paintLabels(context: CanvasRenderingContext2D, theme: ThemeName, labels: readonly Label[]): void {
  const palette = PALETTES[theme];
  context.font = LABEL_FONT;
  context.textBaseline = "middle";
  // Names are left to right whatever letters they hold: the cut is computed so.
  context.direction = "ltr";
  for (const faded of [false, true]) {
    context.fillStyle = faded ? palette.fadedText : palette.text;
    for (const label of labels) if (label.faded === faded) context.fillText(label.text, label.x, label.y + (ROW_PX - 1) / 2 + 0.5);
  }
}

/** Measures single characters in the label font. */
export function characterMeasure(): (character: string) => number {
  const context = document.createElement("canvas").getContext("2d");
  if (context === null) return () => 7;
  context.font = LABEL_FONT;
  return (character) => context.measureText(character).width;
}
