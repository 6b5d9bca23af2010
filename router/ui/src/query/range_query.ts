// The question behind the timeline.
//
// Each point stands for the window (t - step, t]. The points lie without gaps up to the end of the
// window; only the first may begin before it.

import { apiSelector, type Matcher } from "./matchers";
import type { TimeWindow } from "./time_range";

/** Steps that read well on an axis, in seconds. */
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 604_800, 2_592_000];

/** Most points of one series; more than one every few pixels is no use. */
export const POINTS_MAX = 240;

/** Agents send every 5 s: finer steps show the sending, not the load. */
const STEP_MIN_S = 5;

/** Seconds between points for a window. */
export function timelineStep(window: TimeWindow): number {
  const length_s = window.end_s - window.start_s;
  // A window shorter than a few steps is cut finer, so that it is still a line.
  const floor_s = length_s <= 30 ? 1 : STEP_MIN_S;
  const step = STEPS_S.find((s) => s >= floor_s && length_s / s <= POINTS_MAX);
  return step ?? Math.ceil(length_s / POINTS_MAX / 86_400) * 86_400;
}

/** How long a gauge's last value stands, as PromQL has it. */
const GAUGE_LOOKBACK_S = 300;

export interface TimelineQuery {
  readonly query: string;
  readonly start_s: number;
  readonly end_s: number;
  readonly step_s: number;
}

/**
 * The range query of a profile type, stacked by a label ("" for none).
 *
 * `moving`: the window's end is the clock; points then stand on whole steps, so that asking again a
 * second later moves no boundary.
 */
export function timelineQuery(
  profileType: string,
  gauge: boolean,
  matchers: readonly Matcher[],
  by: string,
  window: TimeWindow,
  moving: boolean,
): TimelineQuery {
  const step_s = timelineStep(window);
  const end_s = moving ? Math.floor(window.end_s / step_s) * step_s : window.end_s;
  const count = Math.max(Math.ceil((end_s - window.start_s) / step_s), 1);
  // A gauge holds until its next profile, which may come once a minute.
  const [over, window_s] = gauge ? ["last_over_time", Math.max(step_s, GAUGE_LOOKBACK_S)] : ["rate", step_s];
  const inner = `${over}(${apiSelector(profileType, matchers)}[${window_s}s])`;
  return {
    query: by === "" ? `sum(${inner})` : `sum by (${by}) (${inner})`,
    start_s: end_s - (count - 1) * step_s,
    end_s,
    step_s,
  };
}
