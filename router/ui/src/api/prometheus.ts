// The parts of the Prometheus API that the web UI uses. All functions throw `ApiError`.

import type { MatrixSeries } from "../profile/stacked_areas";
import type { RangeQuery } from "../query/range_query";
import { secondsText, type TimeWindow } from "../query/time_range";
import { callData, callWithWarnings, type Shards } from "./client";

/** The stored profile types. */
export interface ProfileTypes {
  readonly types: readonly string[];
  /** Present only if some shards did not answer. */
  readonly shards?: Shards;
}

/** Fetches the full IDs of all stored profile types. If all shards answered and there are none, the store is empty. */
export async function fetchProfileTypes(signal: AbortSignal): Promise<ProfileTypes> {
  const { data, shards } = await callWithWarnings("api/v1/label/__profile_type__/values", {}, signal);
  return { types: data as string[], shards };
}

/** Fetches the full IDs of the profile types whose values are gauges. */
export async function fetchGauges(signal: AbortSignal): Promise<Set<string>> {
  const metadata = (await callData("api/v1/metadata", {}, signal)) as Record<string, Array<{ type: string }>>;
  const isGauge = (type: string): boolean => metadata[type].some((entry) => entry.type === "gauge");
  return new Set(Object.keys(metadata).filter(isGauge));
}

/** The response to a range query. */
export interface RangeResponse {
  readonly series: readonly MatrixSeries[];
  /** Present only if some shards did not answer. */
  readonly shards?: Shards;
  readonly warnings: readonly string[];
}

export async function fetchRange(range: RangeQuery, signal: AbortSignal): Promise<RangeResponse> {
  const params = {
    query: range.query,
    start: secondsText(range.start_s),
    end: secondsText(range.end_s),
    step: String(range.step_s),
  };
  const { data, shards, warnings } = await callWithWarnings("api/v1/query_range", params, signal);
  return { series: (data as { result: MatrixSeries[] }).result, shards, warnings };
}

/** The series that a selector matches in a time window. */
export interface SeriesQuery {
  readonly selector: string;
  readonly window: TimeWindow;
}

function seriesParams({ selector, window }: SeriesQuery): Record<string, string> {
  return { "match[]": selector, start: secondsText(window.start_s), end: secondsText(window.end_s) };
}

/** Fetches the names of the labels of the series. */
export async function fetchLabels(series: SeriesQuery, signal: AbortSignal): Promise<string[]> {
  return (await callData("api/v1/labels", seriesParams(series), signal)) as string[];
}

/** Fetches the values of one label of the series. */
export async function fetchLabelValues(label: string, series: SeriesQuery, signal: AbortSignal): Promise<string[]> {
  return (await callData(`api/v1/label/${encodeURIComponent(label)}/values`, seriesParams(series), signal)) as string[];
}

/** Returns whether the selector matches at least one series. */
export async function hasSeries(series: SeriesQuery, signal: AbortSignal): Promise<boolean> {
  const found = (await callData("api/v1/series", { limit: "1", ...seriesParams(series) }, signal)) as unknown[];
  return found.length > 0;
}
