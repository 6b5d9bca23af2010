// State of the web UI and the queries that follow from it. Components read the store and call its methods.
//
// Data flows one way: address, state, queries, responses, views. A link therefore reproduces the same view.

import { batch, createContext, createEffect, createMemo, createSignal, on, onCleanup, useContext } from "solid-js";
import { createStore } from "solid-js/store";
import { fetchAgent, type AgentState } from "../api/agent";
import type { Shards } from "../api/client";
import { fetchFlameGraph, type FlameResponse } from "../api/flame_graph";
import { fetchGauges, fetchProfileTypes, fetchRange } from "../api/prometheus";
import { stackAreas, type StackedAreas } from "../profile/stacked_areas";
import { parseSelector, printMatchers, withMatcher, type Matcher } from "../query/matchers";
import { rangeQuery } from "../query/range_query";
import { absoluteRange, isRelative, resolveRange, type TimeRange, type TimeWindow } from "../query/time_range";
import { measureOf, type Measure } from "../text/format";
import { createLoader } from "./loader";
import { createNamesWatch } from "./names_watch";
import { renamedPosition } from "./position";
import { defaultType, typeOfMetric } from "./profile_type";
import { createRecovery } from "./recovery";
import { readState, writeState, type UrlState } from "./url_state";

/** The stored profile types. */
export interface Catalog {
  readonly types: readonly string[];
  /** Profile types whose values are gauges. */
  readonly gauges: ReadonlySet<string>;
  /** Present only if some shards did not answer, so that types may be missing. */
  readonly shards?: Shards;
}

export interface TimelineResponse {
  readonly stacked: StackedAreas;
  readonly by: string;
  readonly measure: Measure;
  readonly window: TimeWindow;
  readonly step_s: number;
  /** Present only if some shards did not answer. */
  readonly shards?: Shards;
  /** Parts of the data that the response could not include, one sentence each. */
  readonly warnings: readonly string[];
  /** True if the window ended at the time of the query. */
  readonly moving: boolean;
}

/**
 * Period of the automatic queries of a relative time range, in milliseconds. Agents send every 5 s, so an open page
 * shows the functions of a new program within 10 s.
 */
export const LIVE_MS = 4_000;
/** Time between polls for the first profile while the store is empty, in milliseconds. */
const EMPTY_POLL_MS = 2_000;

export type AppStore = ReturnType<typeof createAppStore>;

export function createAppStore() {
  const [state, setState] = createStore<UrlState>(readState(location.search));
  const catalog = createLoader<Catalog>();
  const flame = createLoader<FlameResponse>((next, before) => {
    const position = renamedPosition(state, before, next);
    if (Object.keys(position).length > 0) navigate(position, "replace");
  });
  const timeline = createLoader<TimelineResponse>();
  const agent = createLoader<AgentState | null>();
  const [selectorError, setSelectorError] = createSignal<Error>();
  const [timeWindow, setTimeWindow] = createSignal<TimeWindow | null>(null);
  /** Number of open menus, drags and the like, which a redraw would end. */
  const [holds, setHolds] = createSignal(0);
  const [visible, setVisible] = createSignal(!document.hidden);
  const followVisibility = (): void => void setVisible(!document.hidden);
  document.addEventListener("visibilitychange", followVisibility);
  onCleanup(() => document.removeEventListener("visibilitychange", followVisibility));

  /** Prevents automatic queries and redraws until the returned function is called. */
  function hold(): () => void {
    setHolds((count) => count + 1);
    let isReleased = false;
    return () => {
      if (!isReleased) setHolds((count) => count - 1);
      isReleased = true;
    };
  }

  /** Changes the state and the address. With "replace", the history gets no new entry. */
  function navigate(patch: Partial<UrlState>, how: "push" | "replace" = "push"): void {
    batch(() => setState(patch));
    const address = location.pathname + writeState(state);
    if (address === location.pathname + location.search) return;
    if (how === "push") history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  }
  const followHistory = (): void => batch(() => setState(readState(location.search)));
  addEventListener("popstate", followHistory);
  onCleanup(() => removeEventListener("popstate", followHistory));

  // The chosen type stays: another type that is stored later must not change the view.
  const type = createMemo<string>((before) => {
    const types = catalog.latest()?.types ?? [];
    return state.type || (types.includes(before) ? before : defaultType(types));
  }, "");
  const matchers = createMemo<readonly Matcher[] | null>(() => {
    try {
      return parseSelector(state.query).matchers;
    } catch (_malformed) {
      return null;
    }
  });
  const range = createMemo<TimeRange>(() => ({ from: state.from, to: state.to }));
  /** True if nothing is stored. A shard that did not answer may have data. */
  const isEmpty = createMemo(() => {
    const known = catalog.latest();
    return known?.types.length === 0 && known.shards === undefined && state.type === "";
  });

  function refreshCatalog(): Promise<void> {
    return catalog.run(async (signal) => {
      const [{ types, shards }, gauges] = await Promise.all([fetchProfileTypes(signal), fetchGauges(signal)]);
      return { types: [...types].sort(), gauges, shards };
    });
  }

  /** Runs the queries of the current state. */
  function run(): void {
    const selected = matchers();
    const window = resolveRange(range(), Date.now() / 1000);
    if (selected === null || type() === "" || window === null || catalog.latest() === undefined) return;
    const foldsInterpreters = state.fold;
    const query = { profileType: type(), matchers: selected, window, range: range(), foldsInterpreters };
    void flame.run((signal) => fetchFlameGraph(query, signal));
    setTimeWindow(window);
    runTimeline();
  }

  function runTimeline(): void {
    const selected = matchers();
    const window = timeWindow();
    const known = catalog.latest();
    const profileType = type();
    if (selected === null || window === null || known === undefined || profileType === "") return;
    const by = state.by;
    const moving = isRelative(range());
    const gauge = known.gauges.has(profileType);
    const query = rangeQuery(profileType, gauge, selected, by, window, moving);
    void timeline.run(async (signal) => {
      const { series, shards, warnings } = await fetchRange(query, signal);
      const stacked = stackAreas(series, by, query);
      const measure = measureOf(profileType, gauge);
      return { stacked, by, measure, window, step_s: query.step_s, shards, warnings, moving };
    });
  }

  /** Runs the query with the selector that the user typed, or shows its syntax error. */
  function commitSelector(text: string): void {
    try {
      const selector = parseSelector(text);
      setSelectorError(undefined);
      const patch: Partial<UrlState> = { query: printMatchers(selector.matchers) };
      const named = selector.metric === "" ? type() : typeOfMetric(selector.metric, catalog.latest()?.types ?? []);
      const before = writeState(state);
      navigate(named === type() ? patch : { ...patch, type: named });
      if (writeState(state) === before) run();
    } catch (error) {
      setSelectorError(error instanceof Error ? error : new Error(String(error)));
    }
  }

  /** Adds a matcher to the selector and runs the query. */
  function addMatcher(matcher: Matcher): void {
    commitSelector(printMatchers(withMatcher(matchers() ?? [], matcher)));
  }

  /** Fetches everything again, beginning with the profile types. */
  function restart(): void {
    const before = type();
    void refreshCatalog().then(() => {
      // If the type changes, another effect runs the query.
      if (catalog.failure() === undefined && type() === before) run();
    });
    void agent.run(fetchAgent);
  }

  const failures = createMemo(() =>
    [catalog.failure(), flame.failure(), timeline.failure()].filter((failure) => failure !== undefined),
  );
  /** Parts of the data that the flame graph or the timeline could not include. */
  const warnings = createMemo(() => [
    ...new Set([...(flame.latest()?.warnings ?? []), ...(timeline.latest()?.warnings ?? [])]),
  ]);
  const lostServer = createMemo(() => failures().find(({ kind }) => kind === "unreachable" || kind === "unavailable"));
  const needsToken = createMemo(() => failures().find(({ kind }) => kind === "unauthorized"));
  const isServing = (): boolean => lostServer() === undefined && needsToken() === undefined;
  createRecovery(
    () => lostServer() !== undefined,
    () => catalog.pending() || flame.pending() || timeline.pending(),
    restart,
  );

  const namesWatch = createNamesWatch({
    response: flame.latest,
    canRedraw: createMemo(() => visible() && holds() === 0 && !flame.pending() && isServing()),
    redraw: (named) => {
      flame.put(named);
      // The timeline may be stacked or filtered by function, so it changes with the names.
      runTimeline();
    },
  });

  createEffect(on([type, () => state.query, () => state.from, () => state.to, () => state.fold], run));
  createEffect(on(() => state.by, runTimeline, { defer: true }));
  createEffect(() => every(EMPTY_POLL_MS, isEmpty() && lostServer() === undefined, restart));
  const live = createMemo(() => state.live && isRelative(range()) && !isEmpty() && isServing());
  createEffect(() =>
    every(LIVE_MS, live(), () => {
      if (!visible() || holds() > 0 || flame.pending()) return;
      restart();
    }),
  );
  // A malformed selector in a link shows the same error as a typed one.
  createEffect(on(matchers, (read) => (read === null ? commitSelector(state.query) : setSelectorError(undefined))));
  restart();

  return {
    state,
    navigate,
    catalog,
    flame,
    timeline,
    agent,
    type,
    matchers,
    range,
    timeWindow,
    isEmpty,
    failures,
    warnings,
    lostServer,
    needsToken,
    selectorError,
    /** True if pending names have not arrived for minutes, so that polling has stopped. */
    hasNamesTimedOut: namesWatch.hasTimedOut,
    commitSelector,
    addMatcher,
    run,
    hold,
    restart,
    /** Stops all running queries. The views keep what they show. */
    cancel: () => [catalog, flame, timeline].forEach((loader) => loader.cancel()),
    /** Address that shows the same view later and to other people. */
    link: () => {
      const window = timeWindow();
      const fixed = window === null ? {} : { ...absoluteRange(window), live: false };
      return location.origin + location.pathname + writeState({ ...state, type: type(), ...fixed });
    },
  };
}

/** Calls `act` every `period_ms` while `isActive` is true. For use in an effect. */
function every(period_ms: number, isActive: boolean, act: () => void): void {
  if (!isActive) return;
  const timer = setInterval(act, period_ms);
  onCleanup(() => clearInterval(timer));
}

const StoreContext = createContext<AppStore>();
export const StoreProvider = StoreContext.Provider;

export function useStore(): AppStore {
  const store = useContext(StoreContext);
  if (store === undefined) throw new Error("useStore needs a StoreProvider around the component");
  return store;
}
