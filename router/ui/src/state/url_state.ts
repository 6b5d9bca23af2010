// State of every control of the web UI, stored in the address.
//
// Invariant: reading a written state gives the same state.
// Only values that differ from the default are written. A malformed value is read as the default.

import type { SortKey } from "../profile/function_table";
import { DEFAULT_RANGE, resolveRange } from "../query/time_range";

export type ViewName = "both" | "flame" | "table";

export interface UrlState {
  /** Full id of the profile type; "" selects the default type. */
  readonly type: string;
  /** Text of the selector. */
  readonly query: string;
  readonly from: string;
  readonly to: string;
  /** Label by which the timeline is stacked; "" draws one area. */
  readonly by: string;
  readonly view: ViewName;
  /** Regular expression of the search. Functions that do not match are faded. */
  readonly search: string;
  /** Function marked in the table. */
  readonly pick: string;
  /** Key of the zoomed frame; "" is the root. */
  readonly zoom: string;
  /** True if the root is at the bottom. */
  readonly flip: boolean;
  /** True if the native frames that run functions of a language are removed. */
  readonly fold: boolean;
  readonly sort: SortKey;
  readonly descending: boolean;
  /** True if the query repeats automatically while the time range is relative. */
  readonly live: boolean;
}

export const DEFAULT_STATE: UrlState = {
  type: "",
  query: "{}",
  from: DEFAULT_RANGE.from,
  to: DEFAULT_RANGE.to,
  by: "service_name",
  view: "both",
  search: "",
  pick: "",
  zoom: "",
  flip: false,
  fold: false,
  sort: "self",
  descending: true,
  live: true,
};

const VIEWS: readonly string[] = ["both", "flame", "table"];
const SORT_KEYS: readonly string[] = ["name", "self", "total"];

/** State from a query string such as `?type=...&view=flame`. */
export function readState(search: string): UrlState {
  const found = new URLSearchParams(search);
  const text = (key: keyof UrlState): string => found.get(key) ?? String(DEFAULT_STATE[key]);
  const flag = (key: keyof UrlState): boolean => {
    const value = found.get(key);
    return value === "1" ? true : value === "0" ? false : Boolean(DEFAULT_STATE[key]);
  };
  const oneOf = <T extends string>(key: keyof UrlState, allowed: readonly string[]): T => {
    const value = text(key);
    return (allowed.includes(value) ? value : DEFAULT_STATE[key]) as T;
  };
  const requested = { from: text("from"), to: text("to") };
  const range = resolveRange(requested, Date.now() / 1000) === null ? DEFAULT_RANGE : requested;
  return {
    type: text("type"),
    query: text("query"),
    from: range.from,
    to: range.to,
    by: text("by"),
    view: oneOf<ViewName>("view", VIEWS),
    search: text("search"),
    pick: text("pick"),
    zoom: text("zoom"),
    flip: flag("flip"),
    fold: flag("fold"),
    sort: oneOf<SortKey>("sort", SORT_KEYS),
    descending: flag("descending"),
    live: flag("live"),
  };
}

/** Query string of a state; "" if all values are the default. */
export function writeState(state: UrlState): string {
  const params = new URLSearchParams();
  for (const key of Object.keys(DEFAULT_STATE) as Array<keyof UrlState>) {
    const value = state[key];
    if (value === DEFAULT_STATE[key]) continue;
    params.set(key, typeof value === "boolean" ? (value ? "1" : "0") : value);
  }
  const text = params.toString();
  return text === "" ? "" : `?${text}`;
}
