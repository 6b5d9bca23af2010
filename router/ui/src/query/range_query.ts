// The PromQL range query of the timeline.
//
// The point at t covers the interval (t - step, t].
// The points cover the time window without gaps; only the first interval may begin before it.

import { apiSelector, type Matcher } from "./matchers";
import type { TimeWindow } from "./time_range";

/** Distances between points that read well on an axis, in seconds. */
const STEPS_S = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 604_800, 2_592_000,
];

/** Largest number of points in a series: one every few pixels. */
export const POINTS_MAX = 240;

/** Shortest distance between points. Agents send every 5 s: finer steps would show the sending and not the load. */
const STEP_MIN_S = 5;

/** Distance between the points of a window, in seconds. */
export function timelineStep(window: TimeWindow): number {
  const length_s = window.end_s - window.start_s;
  // A window of only a few steps gets finer steps, so that it is still drawn as a line.
  const floor_s = length_s <= 30 ? 1 : STEP_MIN_S;
  const step = STEPS_S.find((s) => s >= floor_s && length_s / s <= POINTS_MAX);
  return step ?? Math.ceil(length_s / POINTS_MAX / 86_400) * 86_400;
}

/** Time for which a gauge keeps its last value, as in PromQL, in seconds. */
const GAUGE_LOOKBACK_S = 300;

export interface RangeQuery {
  readonly query: string;
  readonly start_s: number;
  readonly end_s: number;
  readonly step_s: number;
}

/**
 * Returns the range query of a profile type, grouped by a label ("" for none).
 *
 * `moving` is true if the window ends now. Points then lie on multiples of the step, so that a query a second later has
 * the same intervals.
 */
export function rangeQuery(
  profileType: string,
  gauge: boolean,
  matchers: readonly Matcher[],
  by: string,
  window: TimeWindow,
  moving: boolean,
): RangeQuery {
  const step_s = timelineStep(window);
  const end_s = moving ? Math.floor(window.end_s / step_s) * step_s : window.end_s;
  const count = Math.max(Math.ceil((end_s - window.start_s) / step_s), 1);
  // A gauge keeps its value until its next profile. Profiles may come only once a minute.
  const selector = apiSelector(profileType, matchers);
  const inner = gauge
    ? `last_over_time(${selector}[${Math.max(step_s, GAUGE_LOOKBACK_S)}s])`
    : `rate(${selector}[${step_s}s])`;
  return {
    query: by === "" ? `sum(${inner})` : `sum by (${by}) (${inner})`,
    start_s: end_s - (count - 1) * step_s,
    end_s,
    step_s,
  };
}
