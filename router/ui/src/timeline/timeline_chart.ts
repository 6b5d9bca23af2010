// Draws the timeline's stacked steps with uPlot.
//
// uPlot draws lines, so the areas are drawn as cumulative lines, from the top of the stack down. Each area covers a
// part of the one before it. The lines are steps and not slopes, because a point is the mean of the step before it.

import uPlot from "uplot";
import { oklchCss } from "../color/oklch";
import type { ThemeName } from "../color/palette";
import { AREA_HUES, type StackedAreas } from "../profile/stacked_areas";

export interface ChartOptions {
  readonly stacked: StackedAreas;
  /** Number of points to draw, from the first. */
  readonly count: number;
  readonly step_s: number;
  readonly start_s: number;
  readonly end_s: number;
  readonly theme: ThemeName;
  formatAxis(rate: number): string;
  /** Called when the user has dragged over a window, whose ends are in Unix seconds. */
  onDrag(start_s: number, end_s: number): void;
  /** Called with the index of the point under the pointer; null when the pointer leaves. */
  onPoint(index: number | null): void;
}

const HEIGHT_PX = 116;
/** Shortest drag that selects a window, in pixels. */
const DRAG_MIN_PX = 4;

/** Colour of an area by the number of its hue. -1 is the area that small series share. */
export function areaColor(hue: number, theme: ThemeName): string {
  const lightness = theme === "light" ? 0.72 : 0.62;
  if (hue < 0) return oklchCss(lightness, 0.01, 250);
  // Lightness alternates too, so that neighbouring hues are easier to tell apart.
  return oklchCss(lightness + (hue % 2 === 0 ? 0.06 : -0.06), 0.11, (hue / AREA_HUES) * 360 + 20);
}

/** Creates the chart in `host`. The caller destroys it before it creates another. */
export function makeChart(host: HTMLElement, options: ChartOptions): uPlot {
  const { stacked, count, theme, step_s } = options;
  const axisColor = theme === "light" ? "#56616f" : "#9aa6b5";
  const gridColor = theme === "light" ? "#e3e7ec" : "#2c343d";
  const times = Array.from(stacked.times_s.subarray(0, count));
  // A step ends at its point, so the first step needs one more point, at its start.
  const x = [(times[0] ?? options.start_s) - step_s, ...times];
  const stepped = uPlot.paths.stepped?.({ align: -1 });
  const lines = cumulative(stacked, count).map((line) => [line[0] ?? 0, ...line]);
  const chart = new uPlot(
    {
      width: Math.max(host.clientWidth, 100),
      height: HEIGHT_PX,
      padding: [6, 8, 0, 0],
      legend: { show: false },
      cursor: {
        drag: { x: true, y: false, setScale: false, dist: DRAG_MIN_PX },
        points: { show: false },
        y: false,
      },
      scales: {
        x: { time: true, range: [options.start_s, options.end_s] },
        y: { range: (_chart, _low, high) => [0, high > 0 ? high * 1.08 : 1] },
      },
      axes: [
        {
          stroke: axisColor,
          size: 22,
          gap: 3,
          font: "11px system-ui, sans-serif",
          grid: { stroke: gridColor, width: 1 },
          ticks: { show: false },
          values: timeLabels,
        },
        {
          stroke: axisColor,
          size: 78,
          gap: 6,
          font: "11px system-ui, sans-serif",
          grid: { stroke: gridColor, width: 1 },
          ticks: { show: false },
          space: 28,
          values: (_chart, splits) => splits.map((split) => options.formatAxis(split)),
        },
      ],
      series: [{}, ...[...stacked.areas].reverse().map((area) => areaSeries(areaColor(area.hue, theme), stepped))],
      hooks: {
        setSelect: [
          (plot) => {
            const { left, width } = plot.select;
            if (width < DRAG_MIN_PX) return;
            const from = plot.posToVal(left, "x");
            const to = plot.posToVal(left + width, "x");
            plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            options.onDrag(from, to);
          },
        ],
        setCursor: [
          (plot) => {
            const at = plot.cursor.left ?? -1;
            options.onPoint(at < 0 ? null : pointAt(times, plot.posToVal(at, "x"), step_s));
          },
        ],
      },
    },
    [x, ...lines] as uPlot.AlignedData,
    host,
  );
  return chart;
}

function areaSeries(color: string, paths: uPlot.Series.PathBuilder | undefined): uPlot.Series {
  return { stroke: color, fill: color, width: 0, points: { show: false }, ...(paths ? { paths } : {}) };
}

/** Upper edges of the areas, from the top of the stack to its bottom. */
function cumulative(stacked: StackedAreas, count: number): number[][] {
  const lines: number[][] = [];
  const below = new Float64Array(count);
  for (const area of stacked.areas) {
    for (let i = 0; i < count; i++) below[i] += area.values[i];
    lines.push(Array.from(below));
  }
  return lines.reverse();
}

/**
 * Index of the point whose step contains `time_s`; null if there is none. The step of a point at t is (t - step, t].
 */
function pointAt(times: readonly number[], time_s: number, step_s: number): number | null {
  if (times.length === 0) return null;
  const index = Math.ceil((time_s - times[0]) / step_s);
  return index >= 0 && index < times.length ? index : null;
}

/**
 * Labels of the time axis: 24-hour times, with seconds if the labels are less than a minute apart, and the date at
 * midnight.
 */
function timeLabels(_chart: uPlot, splits: number[], _axis: number, _space: number, between_s: number): string[] {
  const two = (number: number): string => String(number).padStart(2, "0");
  return splits.map((split) => {
    const date = new Date(split * 1000);
    const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    if (between_s >= 86_400 || (date.getHours() === 0 && date.getMinutes() === 0 && date.getSeconds() === 0))
      return day;
    const minutes = `${two(date.getHours())}:${two(date.getMinutes())}`;
    return between_s < 60 ? `${minutes}:${two(date.getSeconds())}` : minutes;
  });
}
