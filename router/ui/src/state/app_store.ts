// The page's state and the questions that follow from it. Components read it and call its verbs.
//
// Address -> state -> questions -> answers -> picture: nothing flows back, so a link is enough
// to show the same picture elsewhere.

import { batch, createContext, createEffect, createMemo, createSignal, on, onCleanup, useContext } from "solid-js";
import { createStore } from "solid-js/store";
import { askAgent, type AgentState } from "../api/agent";
import { askFlame, type FlameAnswer } from "../api/flame_graph";
import { askGauges, askProfileTypes, askTimeline } from "../api/prometheus";
import { parseSelector, printMatchers, SelectorError, withMatcher, type Matcher } from "../query/matchers";
import { absoluteRange, isRelative, resolveRange, type TimeRange, type TimeWindow } from "../query/time_range";
import { stackAreas, type StackedAreas } from "../profile/stacked_areas";
import { timelineQuery } from "../query/range_query";
import { measureOf, type Measure } from "../text/format";
import { createLoader } from "./loader";
import { createNamesWatch } from "./names_watch";
import { createRecovery } from "./recovery";
import { readState, writeState, type PageState } from "./url_state";

/** What there is to ask for. */
export interface Catalog {
  readonly types: readonly string[];
  readonly gauges: ReadonlySet<string>;
}

export interface TimelineAnswer {
  readonly stacked: StackedAreas;
  readonly by: string;
  readonly measure: Measure;
  readonly window: TimeWindow;
  readonly step_s: number;
  /** True if the window ended when it was asked for. */
  readonly moving: boolean;
}

/** How often a relative range is asked again while it is live. */
export const LIVE_MS = 10_000;
/** How often an empty store is asked whether the first profile has come. */
const EMPTY_POLL_MS = 2_000;

export type Page = ReturnType<typeof createPage>;

export function createPage() {
  const [state, setState] = createStore<PageState>(readState(location.search));
  const catalog = createLoader<Catalog>();
  const flame = createLoader<FlameAnswer>();
  const timeline = createLoader<TimelineAnswer>();
  const agent = createLoader<AgentState | null>();
  const [selectorFault, setSelectorFault] = createSignal<SelectorError | Error>();
  const [timeWindow, setTimeWindow] = createSignal<TimeWindow | null>(null);
  /** True while the person holds something open that a new picture would take away. */
  const [held, setHeld] = createSignal(false);

  /** Changes the state and the address; `replace` for what is still being typed. */
  function navigate(patch: Partial<PageState>, how: "push" | "replace" = "push"): void {
    batch(() => setState(patch));
    const address = location.pathname + writeState(state);
    if (address === location.pathname + location.search) return;
    if (how === "push") history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  }
  const followHistory = (): void => batch(() => setState(readState(location.search)));
  addEventListener("popstate", followHistory);
  onCleanup(() => removeEventListener("popstate", followHistory));

  // Kept once chosen: a type that arrives later must not change the picture under somebody's eyes.
  const type = createMemo<string>((before) => {
    const types = catalog.latest()?.types ?? [];
    return state.type || (types.includes(before) ? before : firstType(types));
  }, "");
  const matchers = createMemo<readonly Matcher[] | null>(() => {
    try {
      return parseSelector(state.query).matchers;
    } catch (_asTyped) {
      return null;
    }
  });
  const range = createMemo<TimeRange>(() => ({ from: state.from, to: state.to }));
  const isEmpty = createMemo(() => catalog.latest()?.types.length === 0 && state.type === "");

  function refreshCatalog(): Promise<void> {
    return catalog.run(async (signal) => {
      const [types, gauges] = await Promise.all([askProfileTypes(signal), askGauges(signal)]);
      return { types: [...types].sort(), gauges };
    });
  }

  /** Asks for the picture that the state describes. */
  function run(): void {
    const asked = matchers();
    const window = resolveRange(range(), Date.now() / 1000);
    if (asked === null || type() === "" || window === null || catalog.latest() === undefined) return;
    const question = { profileType: type(), matchers: asked, window };
    void flame.run((signal) => askFlame(question, signal));
    setTimeWindow(window);
    runTimeline();
  }

  function runTimeline(): void {
    const [asked, window, known] = [matchers(), timeWindow(), catalog.latest()];
    if (asked === null || window === null || known === undefined || type() === "") return;
    const [profileType, by, moving] = [type(), state.by, isRelative(range())];
    const gauge = known.gauges.has(profileType);
    const query = timelineQuery(profileType, gauge, asked, by, window, moving);
    void timeline.run(async (signal) => {
      const matrix = await askTimeline(query, signal);
      const stacked = stackAreas(matrix, by, query.start_s, query.end_s, query.step_s);
      return { stacked, by, measure: measureOf(profileType, gauge), window, step_s: query.step_s, moving };
    });
  }

  /** Takes the selector as typed: runs it, or says what is wrong with it. */
  function commitSelector(text: string): void {
    try {
      const selector = parseSelector(text);
      setSelectorFault(undefined);
      const patch: Partial<PageState> = { query: printMatchers(selector.matchers) };
      const named = selector.metric === "" ? type() : typeOfMetric(selector.metric, catalog.latest()?.types ?? []);
      const before = writeState(state);
      navigate(named === type() ? patch : { ...patch, type: named });
      if (writeState(state) === before) run();
    } catch (error) {
      setSelectorFault(error instanceof Error ? error : new Error(String(error)));
    }
  }

  /** Adds a matcher to the selector and runs it. */
  function addMatcher(matcher: Matcher): void {
    commitSelector(printMatchers(withMatcher(matchers() ?? [], matcher)));
  }

  /** Asks for everything again, from what there is to ask for. */
  function restart(): void {
    const before = type();
    void refreshCatalog().then(() => {
      // A type that has just become known asks by itself.
      if (catalog.failure() === undefined && type() === before) run();
    });
    void agent.run(askAgent);
  }

  const failures = createMemo(() => [catalog.failure(), flame.failure(), timeline.failure()].filter((f) => f !== undefined));
  const lostServer = createMemo(() => failures().find((f) => f.kind === "unreachable" || f.kind === "unavailable"));
  const needsToken = createMemo(() => failures().find((f) => f.kind === "unauthorized"));
  createRecovery(
    () => lostServer() !== undefined,
    () => catalog.pending() || flame.pending() || timeline.pending(),
    restart,
  );

  const namesWatch = createNamesWatch({
    answer: flame.latest,
    canRedraw: () => !document.hidden && !held() && !flame.pending() && lostServer() === undefined && needsToken() === undefined,
    redraw: flame.put,
  });

  createEffect(on([type, () => state.query, () => state.from, () => state.to], run));
  createEffect(on(() => state.by, runTimeline, { defer: true }));
  createEffect(() => every(EMPTY_POLL_MS, isEmpty() && lostServer() === undefined, restart));
  const live = createMemo(() => state.live && isRelative(range()) && !isEmpty() && lostServer() === undefined && needsToken() === undefined);
  createEffect(() =>
    every(LIVE_MS, live(), () => {
      if (document.hidden || held() || flame.pending()) return;
      restart();
    }),
  );
  // A link whose selector cannot be read says so, as typing it would.
  createEffect(on(matchers, (read) => (read === null ? commitSelector(state.query) : setSelectorFault(undefined))));
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
    lostServer,
    needsToken,
    selectorFault,
    /** True when names that were on their way have not come for minutes, and are not asked for any more. */
    namesGivenUp: namesWatch.givenUp,
    commitSelector,
    addMatcher,
    run,
    restart,
    setHeld,
    /** Stops everything under way; the last picture stays. */
    cancel: () => [catalog, flame, timeline].forEach((loader) => loader.cancel()),
    /** Address that shows the same picture to somebody else, later. */
    link: () => {
      const window = timeWindow();
      const fixed = window === null ? {} : { ...absoluteRange(window), live: false };
      return location.origin + location.pathname + writeState({ ...state, type: type(), ...fixed });
    },
  };
}

/** Calls `act` every `period_ms` while `when`; for use in an effect. */
function every(period_ms: number, when: boolean, act: () => void): void {
  if (!when) return;
  const timer = setInterval(act, period_ms);
  onCleanup(() => clearInterval(timer));
}

/** Processor time first: it is what most people come for. */
function firstType(types: readonly string[]): string {
  return types.find((type) => type.startsWith("process_cpu:cpu:")) ?? types[0] ?? "";
}

/** The type that a metric name means. Throws with what to do where it means none or several. */
function typeOfMetric(metric: string, types: readonly string[]): string {
  const found = types.filter((type) => type === metric || type.split(":")[0] === metric);
  if (found.length === 1) return found[0];
  // The short name is the type whose sample type is its period's, as the server resolves it.
  const ofPeriod = found.filter((type) => {
    const [, sampleType, sampleUnit, periodType, periodUnit] = type.split(":");
    return sampleType === periodType && sampleUnit === periodUnit;
  });
  if (ofPeriod.length === 1) return ofPeriod[0];
  throw new Error(found.length === 0 ? `no profile type is called ${metric}: choose one in the menu` : `${metric} is several profile types: choose one in the menu`);
}

const PageContext = createContext<Page>();
export const PageProvider = PageContext.Provider;

export function usePage(): Page {
  const page = useContext(PageContext);
  if (page === undefined) throw new Error("usePage outside of PageProvider");
  return page;
}
