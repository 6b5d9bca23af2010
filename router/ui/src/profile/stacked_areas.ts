// Series of a range query, stacked for drawing.
//
// Invariant: the upper edge of the topmost area is the sum of all series at every time.
// Series too small for an area of their own share the last area.

import { hashText } from "../text/hash";

/** One series of a range query's matrix. */
export interface MatrixSeries {
  readonly metric: Readonly<Record<string, string>>;
  /** `[Unix seconds, value]`, ascending. */
  readonly values: ReadonlyArray<readonly [number, string]>;
}

export interface Area {
  /** Value of the label; "" for series without the label, null for the area that the small series share. */
  readonly name: string | null;
  /** Number of series in the area. */
  readonly count: number;
  /** Value at each time of `StackedAreas.times_s`. */
  readonly values: Float64Array;
  /** Mean value over all times. */
  readonly mean: number;
  /** Number of the area's hue, below `AREA_HUES`; -1 for the shared area. */
  readonly hue: number;
}

export interface StackedAreas {
  readonly times_s: Float64Array;
  /** The areas from the bottom of the stack to its top. The bottom one is the largest. */
  readonly areas: readonly Area[];
  /** Sum of all series at each time. */
  readonly sum: Float64Array;
}

/** Largest number of areas, including the shared one. */
export const AREAS_MAX = 10;

/** Number of different hues. */
export const AREA_HUES = 16;

/** Times of a range query's points: `start_s, start_s + step_s .. end_s`, in Unix seconds. */
export interface TimeGrid {
  readonly start_s: number;
  readonly end_s: number;
  readonly step_s: number;
}

/** Stacks the series of a matrix on a grid of times. A series is 0 at a time at which it has no point. */
export function stackAreas(matrix: readonly MatrixSeries[], by: string, grid: TimeGrid): StackedAreas {
  const { start_s, end_s, step_s } = grid;
  const count = Math.max(Math.round((end_s - start_s) / step_s) + 1, 1);
  const times_s = Float64Array.from({ length: count }, (_, i) => start_s + i * step_s);
  const all = matrix.map((series) => {
    const values = new Float64Array(count);
    let sum = 0;
    for (const [time_s, text] of series.values) {
      const at = Math.round((time_s - start_s) / step_s);
      const value = Number(text);
      if (at < 0 || at >= count || !Number.isFinite(value)) continue;
      values[at] = value;
      sum += value;
    }
    return { name: by === "" ? "" : (series.metric[by] ?? ""), values, mean: sum / count };
  });
  all.sort((a, b) => b.mean - a.mean || (a.name < b.name ? -1 : 1));
  // A single small series would share the last area with no other, so it gets an area of its own.
  const own = all.length <= AREAS_MAX ? all : all.slice(0, AREAS_MAX - 1);
  const small = all.slice(own.length);
  const hues = assignHues(own.map((area) => area.name));
  const areas: Area[] = own.map((area) => ({ ...area, count: 1, hue: hues.get(area.name) ?? 0 }));
  if (small.length > 0) {
    const values = new Float64Array(count);
    for (const area of small) for (let i = 0; i < count; i++) values[i] += area.values[i];
    areas.push({
      name: null,
      count: small.length,
      values,
      mean: small.reduce((sum, area) => sum + area.mean, 0),
      hue: -1,
    });
  }
  const sum = new Float64Array(count);
  for (const area of areas) for (let i = 0; i < count; i++) sum[i] += area.values[i];
  return { times_s, areas, sum };
}

/** Assigns each name the hue of its hash, or the next free hue if that one is taken. */
function assignHues(names: readonly string[]): Map<string, number> {
  const hues = new Map<string, number>();
  const taken = new Set<number>();
  // The loop goes over sorted names, and not over areas by size, so that colours do not swap when two areas swap
  // places.
  for (const name of [...names].sort()) {
    let hue = hashText(name) % AREA_HUES;
    while (taken.has(hue)) hue = (hue + 1) % AREA_HUES;
    taken.add(hue);
    hues.set(name, hue);
  }
  return hues;
}

/**
 * Number of points to draw.
 *
 * Points younger than `delay_s` are left out, because agents are still sending their samples. If all other points are
 * 0, all points are drawn.
 */
export function completeCount(stacked: StackedAreas, now_s: number, delay_s: number): number {
  const { times_s, sum } = stacked;
  let count = times_s.length;
  while (count > 0 && times_s[count - 1] > now_s - delay_s) count--;
  for (let i = 0; i < count; i++) if (sum[i] > 0) return count;
  return times_s.length;
}
