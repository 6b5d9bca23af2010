// Reasons for a query without data: matchers that exclude everything, or a time range without data.

import { fetchTotal, type FlameQuery } from "../../api/flame_graph";
import { hasSeries } from "../../api/prometheus";
import { apiSelector, withoutMatcher, type Matcher } from "../../query/matchers";
import type { TimeRange } from "../../query/time_range";

/** Largest number of matchers that are tried. Each of them costs a query. */
const MATCHERS_MAX = 8;
/** The earliest time that varve accepts, 2000-01-01, in Unix seconds. */
const EARLIEST_S = 946_684_800;

/** A time range that ends now, is longer than the query's, and may have data. */
export interface LongerRange {
  readonly length_s: number;
  readonly range: TimeRange;
  readonly label: string;
}

const LONGER_RANGES: readonly LongerRange[] = [
  { length_s: 3600, range: { from: "now-1h", to: "now" }, label: "the last hour" },
  { length_s: 86_400, range: { from: "now-24h", to: "now" }, label: "the last 24 hours" },
  { length_s: 30 * 86_400, range: { from: "now-30d", to: "now" }, label: "the last 30 days" },
  { length_s: 365 * 86_400, range: { from: "now-365d", to: "now" }, label: "the last year" },
  { length_s: Infinity, range: { from: String(EARLIEST_S), to: "now" }, label: "all time" },
];

/** A matcher without which the query has data. */
export interface ExcludingMatcher {
  readonly matcher: Matcher;
  readonly index: number;
  /** Total value of the query without this matcher. */
  readonly totalWithout: number;
}

export interface Diagnosis {
  readonly matchers: readonly ExcludingMatcher[];
  /** Shortest range that has data for the whole selector; null if none has. */
  readonly range: LongerRange | null;
}

/** Finds the reason why `query` has no data. Throws `ApiError`. */
export async function diagnose(query: FlameQuery, signal: AbortSignal): Promise<Diagnosis> {
  const tried = query.matchers.slice(0, MATCHERS_MAX).map(async (matcher, index): Promise<ExcludingMatcher> => {
    const matchers = withoutMatcher(query.matchers, index);
    return { matcher, index, totalWithout: await fetchTotal({ ...query, matchers }, signal) };
  });
  const matchers = (await Promise.all(tried)).filter(({ totalWithout }) => totalWithout > 0);
  const selector = apiSelector(query.profileType, query.matchers);
  const now_s = Date.now() / 1000;
  for (const longer of LONGER_RANGES) {
    const start_s = Math.max(now_s - longer.length_s, EARLIEST_S);
    if (start_s >= query.window.start_s) continue;
    const hasData = await hasSeries({ selector, window: { start_s, end_s: now_s } }, signal);
    if (hasData) return { matchers, range: longer };
  }
  return { matchers, range: null };
}
