// `/api/v1/flamegraph`: the answer as the page keeps it.

import { buildProfileTree, type Frame, type ProfileTree, type WireNode } from "../profile/profile_tree";
import { apiSelector, type Matcher } from "../query/matchers";
import { secondsText, type TimeWindow } from "../query/time_range";
import { measureOf, type Measure } from "../text/format";
import { bodyText, call, parseAnswer } from "./client";
import { type WireInteger, wireNumber } from "./exact_json";

/** Frames of one binary that have no name, and why. */
export interface UnnamedFrames {
  readonly reason: string;
  readonly text: string;
  readonly binary?: string;
  readonly build_id?: string;
  readonly frames: number;
  readonly value: WireInteger;
}

interface WireFlameAnswer {
  profile_type: string;
  unit: string;
  gauge: boolean;
  total: WireInteger;
  samples: WireInteger;
  series: number;
  names: string[];
  frames: Frame[];
  nodes: WireNode[];
  symbolization: { frames: number; named: number; unnamed: UnnamedFrames[] };
  shards: { asked: number; answered: number };
  pruned: { nodes: number; value: WireInteger };
  names_pending: string[];
  warnings: string[];
}

/** What an answer is the answer to. */
export interface FlameQuestion {
  readonly profileType: string;
  readonly matchers: readonly Matcher[];
  readonly window: TimeWindow;
}

export interface FlameAnswer {
  readonly question: FlameQuestion;
  readonly tree: ProfileTree;
  readonly measure: Measure;
  readonly total: number;
  readonly samples: number;
  readonly series: number;
  readonly symbolization: WireFlameAnswer["symbolization"];
  readonly shards: WireFlameAnswer["shards"];
  readonly prunedNodes: number;
  readonly prunedValue: number;
  /** Paths of the files whose symbol tables are being built: their names come with a later answer. */
  readonly namesPending: readonly string[];
  /** What the answer leaves out, a sentence each. */
  readonly warnings: readonly string[];
  /** Milliseconds the server took, by its own account where it gives one. */
  readonly took_ms: number;
}

/** Most nodes asked for: what the page draws in one frame, and more than a screen has pixels for. */
export const NODES_MAX = 100_000;

function params({ profileType, matchers, window }: FlameQuestion): Record<string, string> {
  return { query: apiSelector(profileType, matchers), start: secondsText(window.start_s), end: secondsText(window.end_s) };
}

/** Asks for the flame graph of a selector. Throws `ApiError` or `MalformedTree`. */
export async function askFlame(question: FlameQuestion, signal: AbortSignal): Promise<FlameAnswer> {
  const path = "api/v1/flamegraph";
  const asked_ms = performance.now();
  const response = await call(path, { ...params(question), max_nodes: String(NODES_MAX) }, signal);
  const text = await bodyText(response, signal);
  const took_ms = serverTime(response.headers.get("Server-Timing")) ?? performance.now() - asked_ms;
  performance.clearMarks("varve:answer-received");
  performance.mark("varve:answer-received");
  const wire = parseAnswer(text, path) as WireFlameAnswer;
  const tree = buildProfileTree(wire.names, wire.frames, wire.nodes);
  performance.measure("varve:answer-parse", "varve:answer-received");
  return {
    question,
    tree,
    // By the question's type: an answer without profiles has none of its own.
    measure: measureOf(question.profileType, wire.gauge),
    total: wireNumber(wire.total),
    samples: wireNumber(wire.samples),
    series: wire.series,
    symbolization: wire.symbolization,
    shards: wire.shards,
    prunedNodes: wire.pruned.nodes,
    prunedValue: wireNumber(wire.pruned.value),
    namesPending: wire.names_pending,
    warnings: wire.warnings,
    took_ms,
  };
}

/** The answer without its tree. */
async function askOutline(question: FlameQuestion, signal: AbortSignal): Promise<WireFlameAnswer> {
  const path = "api/v1/flamegraph";
  const response = await call(path, { ...params(question), max_nodes: "1" }, signal);
  return parseAnswer(await bodyText(response, signal), path) as WireFlameAnswer;
}

/** The weight of a selector alone, in the type's unit. */
export async function askTotal(question: FlameQuestion, signal: AbortSignal): Promise<number> {
  return wireNumber((await askOutline(question, signal)).total);
}

/** Paths of the files whose symbol tables are still being built. */
export async function askNamesPending(question: FlameQuestion, signal: AbortSignal): Promise<readonly string[]> {
  return (await askOutline(question, signal)).names_pending;
}

/** The same stacks as a gzipped pprof profile. */
export async function askPprof(question: FlameQuestion, signal: AbortSignal): Promise<Blob> {
  const response = await call("api/v1/flamegraph", { ...params(question), format: "pprof" }, signal);
  return response.blob();
}

/** Milliseconds of a `Server-Timing` header: its `total`, else the sum of its parts; null without any. */
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
