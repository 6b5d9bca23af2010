// Every control of the page, in the address.
//
// Invariant: reading what was written gives the same state. Only what differs from the default is
// written, so a link says what was chosen and nothing else. Anything unreadable is the default.

import type { SortKey } from "../profile/function_table";
import { DEFAULT_RANGE, resolveRange } from "../query/time_range";

export type ViewName = "both" | "flame" | "table";

export interface PageState {
  /** Full id of the profile type; "" is the server's first choice. */
  readonly type: string;
  /** Selector text as typed and run. */
  readonly query: string;
  readonly from: string;
  readonly to: string;
  /** Label that stacks the timeline; "" is one area. */
  readonly by: string;
  readonly view: ViewName;
  /** Regular expression that fades the rest. */
  readonly search: string;
  /** Function picked in the table. */
  readonly pick: string;
  /** Key of the frame zoomed to; "" is the root. */
  readonly zoom: string;
  /** Root at the bottom. */
  readonly flip: boolean;
  readonly sort: SortKey;
  readonly descending: boolean;
  /** Ask again by itself while the range is relative. */
  readonly live: boolean;
}

export const DEFAULT_STATE: PageState = {
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
  sort: "self",
  descending: true,
  live: true,
};

const VIEWS: readonly string[] = ["both", "flame", "table"];
const SORT_KEYS: readonly string[] = ["name", "self", "total"];

/** State of a query string such as `?type=...&view=flame`. */
export function readState(search: string): PageState {
  const found = new URLSearchParams(search);
  const text = (key: keyof PageState): string => found.get(key) ?? String(DEFAULT_STATE[key]);
  const flag = (key: keyof PageState): boolean => {
    const value = found.get(key);
    return value === "1" ? true : value === "0" ? false : Boolean(DEFAULT_STATE[key]);
  };
  const oneOf = <T extends string>(key: keyof PageState, allowed: readonly string[]): T => {
    const value = text(key);
    return (allowed.includes(value) ? value : DEFAULT_STATE[key]) as T;
  };
  const asked = { from: text("from"), to: text("to") };
  const range = resolveRange(asked, Date.now() / 1000) === null ? DEFAULT_RANGE : asked;
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
    sort: oneOf<SortKey>("sort", SORT_KEYS),
    descending: flag("descending"),
    live: flag("live"),
  };
}

/** The query string of a state, "" if everything is the default. */
export function writeState(state: PageState): string {
  const params = new URLSearchParams();
  for (const key of Object.keys(DEFAULT_STATE) as Array<keyof PageState>) {
    const value = state[key];
    if (value === DEFAULT_STATE[key]) continue;
    params.set(key, typeof value === "boolean" ? (value ? "1" : "0") : value);
  }
  const text = params.toString();
  return text === "" ? "" : `?${text}`;
}
