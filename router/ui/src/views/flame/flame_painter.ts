// Draws the visible rows of a flame graph on a canvas.
//
// The cost depends on pixels and not on nodes: rows outside the view are skipped, and a row has at most one rectangle
// per pixel (see `runs.ts`). Text is drawn after all rectangles. So the canvas changes its state twice per row and not
// twice per frame.

import { colorClass, frameColor } from "../../color/frame_color";
import { PALETTES, type ThemeName } from "../../color/palette";
import type { LabelFitter } from "./label_text";
import type { Matches } from "../../profile/matches";
import { printable } from "../../text/printable";
import type { ProfileTree } from "../../profile/profile_tree";
import { visitRuns, type View } from "./runs";

/** Height of one row, in CSS pixels. */
export const ROW_PX = 20;
export const LABEL_FONT = '12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
/** Smallest width of a frame that has a label, in CSS pixels. */
const LABEL_WIDTH_MIN_PX = 24;
const LABEL_PADDING_PX = 4;
/** Largest number of characters that could fit on any screen. Further characters are not measured. */
const LABEL_LENGTH_MAX = 600;

export interface Scene {
  readonly tree: ProfileTree;
  readonly view: View;
  /** The zoomed frame; its ancestors are drawn pale. */
  readonly zoom: number;
  /** Scroll offset of the visible part, its height, and the height of the whole content, in CSS pixels. */
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

/** Stripes for merged frames, so that they do not look like one frame without a name. */
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

/** Colours by name index. A colour is computed on first use, because a screen shows few of 100,000 names. */
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

/** Level at the height `y` of the content. The level may be outside the tree. */
export function levelAt(y: number, content_px: number, flipped: boolean): number {
  return Math.floor((flipped ? content_px - y : y) / ROW_PX);
}

interface Label {
  readonly text: string;
  readonly x: number;
  readonly y: number;
  readonly faded: boolean;
}

/** Draws the scene. The context must be scaled to CSS pixels. */
export function paintScene(context: CanvasRenderingContext2D, scene: Scene, fitter: LabelFitter): void {
  const { tree, view, top_px, height_px, content_px, flipped } = scene;
  context.clearRect(0, 0, view.width_px, height_px);
  const topLevel = levelAt(top_px, content_px, flipped);
  const bottomLevel = levelAt(top_px + height_px, content_px, flipped);
  const first = Math.max(Math.min(topLevel, bottomLevel), 0);
  const last = Math.min(Math.max(topLevel, bottomLevel), tree.levels - 1);
  const labels: Label[] = [];
  for (let level = first; level <= last; level++) {
    paintLevel(context, scene, level, rowTop(level, content_px, flipped) - top_px, fitter, labels);
  }
  paintLabels(context, scene.theme, labels);
}

/** Draws the rectangles of one level at `y` and adds their labels to `labels`. */
function paintLevel(
  context: CanvasRenderingContext2D,
  scene: Scene,
  level: number,
  y: number,
  fitter: LabelFitter,
  labels: Label[],
): void {
  const { tree, view, matches, colors } = scene;
  const palette = PALETTES[scene.theme];
  const isAbove = level < tree.depth[scene.zoom];
  let fill: CanvasPattern | string = "";
  visitRuns(tree, level, view, (first, last, left, right, merged) => {
    const name = tree.name[tree.levelNodes[first]];
    const faded = matches !== null && matches.before[last] === matches.before[first];
    let color = scene.merged;
    if (faded) color = palette.faded;
    else if (!merged) color = colors.of(name);
    else if (matches !== null) color = colors.of(firstMatch(scene, first, last, matches));
    if (color !== fill) {
      context.fillStyle = color;
      fill = color;
    }
    // The rectangle is cut at the edges of the view, because a canvas is imprecise at coordinates of a million pixels.
    const from = Math.max(left, -2);
    const to = Math.min(right, view.width_px + 2);
    const gap = to - from > 3 ? 1 : 0;
    if (isAbove) context.globalAlpha = 0.55;
    context.fillRect(from, y, to - from - gap, ROW_PX - 1);
    if (isAbove) context.globalAlpha = 1;
    if (merged || to - from < LABEL_WIDTH_MIN_PX) return;
    const x = Math.max(left, 0) + LABEL_PADDING_PX;
    const limit_px = Math.min(right, view.width_px) - x - LABEL_PADDING_PX;
    const text = fitter.fit(printable(tree.names[name].slice(0, LABEL_LENGTH_MAX)), limit_px);
    if (text !== "") labels.push({ text, x, y, faded });
  });
}

/** Name of the first frame of a run that matches. The run has the colour of this frame. */
function firstMatch({ tree }: Scene, first: number, last: number, matches: Matches): number {
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
  // All scripts are drawn from left to right, as the fitter assumes.
  context.direction = "ltr";
  for (const faded of [false, true]) {
    context.fillStyle = faded ? palette.fadedText : palette.text;
    for (const label of labels) {
      if (label.faded === faded) context.fillText(label.text, label.x, label.y + (ROW_PX - 1) / 2 + 0.5);
    }
  }
}

/** Returns a function that measures single characters in the label font, in CSS pixels. */
export function characterMeasure(): (character: string) => number {
  const context = document.createElement("canvas").getContext("2d");
  if (context === null) return () => 7;
  context.font = LABEL_FONT;
  return (character) => context.measureText(character).width;
}
