// The part of the Prometheus API that the page uses.

import type { MatrixSeries } from "../profile/stacked_areas";
import type { TimelineQuery } from "../query/range_query";
import { secondsText, type TimeWindow } from "../query/time_range";
import { callData } from "./client";

/** Full ids of all stored profile types; none means that nothing is stored. */
export async function askProfileTypes(signal: AbortSignal): Promise<string[]> {
  return (await callData("api/v1/label/__profile_type__/values", {}, signal)) as string[];
}

/** Full ids of those profile types whose values are gauges. */
export async function askGauges(signal: AbortSignal): Promise<Set<string>> {
  const metadata = (await callData("api/v1/metadata", {}, signal)) as Record<string, Array<{ type: string }>>;
  return new Set(Object.keys(metadata).filter((type) => metadata[type].some((entry) => entry.type === "gauge")));
}

/** The matrix of a range query. */
export async function askTimeline(asked: TimelineQuery, signal: AbortSignal): Promise<MatrixSeries[]> {
  const params = {
    query: asked.query,
    start: secondsText(asked.start_s),
    end: secondsText(asked.end_s),
    step: String(asked.step_s),
  };
  return ((await callData("api/v1/query_range", params, signal)) as { result: MatrixSeries[] }).result;
}

function windowParams(window: TimeWindow): Record<string, string> {
  return { start: secondsText(window.start_s), end: secondsText(window.end_s) };
}

/** Names of the labels of the series that match. */
export async function askLabels(selector: string, window: TimeWindow, signal: AbortSignal): Promise<string[]> {
  return (await callData("api/v1/labels", { "match[]": selector, ...windowParams(window) }, signal)) as string[];
}

/** Values of a label among the series that match. */
export async function askLabelValues(label: string, selector: string, window: TimeWindow, signal: AbortSignal): Promise<string[]> {
  const path = `api/v1/label/${encodeURIComponent(label)}/values`;
  return (await callData(path, { "match[]": selector, ...windowParams(window) }, signal)) as string[];
}

/** True if any series matches in the window. */
export async function askIsThere(selector: string, window: TimeWindow, signal: AbortSignal): Promise<boolean> {
  return ((await callData("api/v1/series", { "match[]": selector, limit: "1", ...windowParams(window) }, signal)) as unknown[]).length > 0;
}
