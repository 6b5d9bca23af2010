// Requests to `/api/v1/flamegraph`, and the response in the form that the web UI keeps.

import { buildProfileTree, type Frame, type ProfileTree, type WireNode } from "../profile/profile_tree";
import type { Symbolization } from "../profile/unnamed_frames";
import { type WireInteger, wireNumber } from "../profile/wire_integer";
import { apiSelector, type Matcher } from "../query/matchers";
import { secondsText, type TimeRange, type TimeWindow } from "../query/time_range";
import { measureOf, type Measure } from "../text/format";
import { bodyText, call, parseResponse, type Shards } from "./client";

interface WireFlameResponse {
  profile_type: string;
  unit: string;
  gauge: boolean;
  total: WireInteger;
  samples: WireInteger;
  series: number;
  names: string[];
  frames: Frame[];
  nodes: WireNode[];
  symbolization: Symbolization;
  shards: Shards;
  pruned: { nodes: number; value: WireInteger };
  names_pending: string[];
  warnings: string[];
}

/** The stacks that a flame graph shows. */
export interface FlameQuery {
  readonly profileType: string;
  readonly matchers: readonly Matcher[];
  readonly window: TimeWindow;
  /** The time range from which `window` was computed. */
  readonly range: TimeRange;
  /** True if the native frames that run functions of a language are removed. */
  readonly foldsInterpreters: boolean;
}

export interface FlameResponse {
  readonly query: FlameQuery;
  readonly tree: ProfileTree;
  readonly measure: Measure;
  readonly total: number;
  readonly samples: number;
  readonly series: number;
  readonly symbolization: Symbolization;
  readonly shards: Shards;
  readonly prunedNodes: number;
  readonly prunedValue: number;
  /** Paths of the files whose symbol tables are being built; a later response has their names. */
  readonly pendingFiles: readonly string[];
  /** Parts of the data that the response could not include, one sentence each. */
  readonly warnings: readonly string[];
  /**
   * Duration of the query in milliseconds, as the server reports it; otherwise the time until the whole response
   * arrived.
   */
  readonly took_ms: number;
}

/** Largest number of nodes requested: as many as the web UI draws within 100 ms. */
export const NODES_MAX = 100_000;

function params({ profileType, matchers, window, foldsInterpreters }: FlameQuery): Record<string, string> {
  return {
    query: apiSelector(profileType, matchers),
    start: secondsText(window.start_s),
    end: secondsText(window.end_s),
    interpreter: foldsInterpreters ? "fold" : "show",
  };
}

/** Fetches the flame graph of a query. Throws `ApiError` or `MalformedTree`. */
export async function fetchFlameGraph(query: FlameQuery, signal: AbortSignal): Promise<FlameResponse> {
  const path = "api/v1/flamegraph";
  const sent_ms = performance.now();
  const response = await call(path, { ...params(query), max_nodes: String(NODES_MAX) }, signal);
  const text = await bodyText(response, signal);
  const took_ms = serverTime(response.headers.get("Server-Timing")) ?? performance.now() - sent_ms;
  performance.clearMarks("varve:response-received");
  performance.mark("varve:response-received");
  const wire = parseResponse(text, path) as WireFlameResponse;
  const tree = buildProfileTree(wire.names, wire.frames, wire.nodes);
  performance.measure("varve:response-parse", "varve:response-received");
  return {
    query,
    tree,
    // The type comes from the query, because a response without profiles has none.
    measure: measureOf(query.profileType, wire.gauge),
    total: wireNumber(wire.total),
    samples: wireNumber(wire.samples),
    series: wire.series,
    symbolization: wire.symbolization,
    shards: wire.shards,
    prunedNodes: wire.pruned.nodes,
    prunedValue: wireNumber(wire.pruned.value),
    pendingFiles: wire.names_pending,
    warnings: wire.warnings,
    took_ms,
  };
}

/** Fetches the response without its tree. */
async function fetchOutline(query: FlameQuery, signal: AbortSignal): Promise<WireFlameResponse> {
  const path = "api/v1/flamegraph";
  const response = await call(path, { ...params(query), max_nodes: "1" }, signal);
  return parseResponse(await bodyText(response, signal), path) as WireFlameResponse;
}

/** Fetches the total value of a query, in the profile type's unit. Throws `ApiError`. */
export async function fetchTotal(query: FlameQuery, signal: AbortSignal): Promise<number> {
  return wireNumber((await fetchOutline(query, signal)).total);
}

/** Fetches the paths of the files whose symbol tables are still being built. Throws `ApiError`. */
export async function fetchPendingFiles(query: FlameQuery, signal: AbortSignal): Promise<readonly string[]> {
  return (await fetchOutline(query, signal)).names_pending;
}

/** Fetches the stacks of a query as a gzipped pprof profile. Throws `ApiError`. */
export async function fetchPprof(query: FlameQuery, signal: AbortSignal): Promise<Blob> {
  const response = await call("api/v1/flamegraph", { ...params(query), format: "pprof" }, signal);
  return response.blob();
}

/**
 * Milliseconds in a `Server-Timing` header: its entry `total`, otherwise the sum of its entries; null if it has none.
 */
export function serverTime(header: string | null): number | null {
  if (header === null) return null;
  let sum_ms: number | null = null;
  for (const part of header.split(",")) {
    const duration = /;\s*dur=(\d+(?:\.\d+)?)/.exec(part);
    if (duration === null) continue;
    if (/^\s*total\b/.test(part)) return Number(duration[1]);
    sum_ms = (sum_ms ?? 0) + Number(duration[1]);
  }
  return sum_ms;
}
