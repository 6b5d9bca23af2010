// Nothing matches: which part of the selector excludes everything, or where in time there is something.

import { createResource, For, Show } from "solid-js";
import { askTotal, type FlameAnswer } from "../../api/flame_graph";
import { askIsThere } from "../../api/prometheus";
import { apiSelector, printMatcher, printMatchers, withoutMatcher, type Matcher } from "../../query/matchers";
import { clockText, type TimeRange } from "../../query/time_range";
import { formatValue } from "../../text/format";
import { usePage } from "../../state/app_store";

/** Matchers asked about; more would be a burst of questions. */
const MATCHERS_MAX = 8;
/** Longer and longer windows up to now, in which something is looked for. */
const WINDOWS: ReadonlyArray<{ readonly length_s: number; readonly range: TimeRange; readonly label: string }> = [
  { length_s: 3600, range: { from: "now-1h", to: "now" }, label: "the last hour" },
  { length_s: 86_400, range: { from: "now-24h", to: "now" }, label: "the last 24 hours" },
  { length_s: 30 * 86_400, range: { from: "now-30d", to: "now" }, label: "the last 30 days" },
  { length_s: 365 * 86_400, range: { from: "now-365d", to: "now" }, label: "the last year" },
  // The earliest time that varve takes is the year 2000.
  { length_s: Infinity, range: { from: "946684800", to: "now" }, label: "all time" },
];
const EARLIEST_S = 946_684_800;

interface Culprit {
  readonly matcher: Matcher;
  readonly index: number;
  /** Weight of the selection without this matcher. */
  readonly without: number;
}

interface Diagnosis {
  readonly culprits: readonly Culprit[];
  /** Shortest window that has something for the whole selector; null if none has. */
  readonly elsewhere: (typeof WINDOWS)[number] | null;
}

async function diagnose(answer: FlameAnswer): Promise<Diagnosis> {
  const { question } = answer;
  const { signal } = new AbortController();
  const asked = question.matchers.slice(0, MATCHERS_MAX).map(async (matcher, index): Promise<Culprit> => {
    const without = await askTotal({ ...question, matchers: withoutMatcher(question.matchers, index) }, signal);
    return { matcher, index, without };
  });
  const culprits = (await Promise.all(asked)).filter((culprit) => culprit.without > 0);
  const selector = apiSelector(question.profileType, question.matchers);
  const now_s = Date.now() / 1000;
  for (const candidate of WINDOWS) {
    const start_s = Math.max(now_s - candidate.length_s, EARLIEST_S);
    if (start_s >= question.window.start_s) continue;
    if (await askIsThere(selector, { start_s, end_s: now_s }, signal)) return { culprits, elsewhere: candidate };
  }
  return { culprits, elsewhere: null };
}

export function NoData(props: { answer: FlameAnswer }) {
  const page = usePage();
  const [diagnosis] = createResource(() => props.answer, diagnose);
  const window = () => props.answer.question.window;
  const isNothing = (found: Diagnosis): boolean => found.culprits.length === 0 && found.elsewhere === null;
  return (
    <section class="empty no-data" role="status">
      <h2>Nothing matches</h2>
      <p class="code">{printMatchers(props.answer.question.matchers)}</p>
      <p class="muted">
        after {clockText(window().start_s)}, until {clockText(window().end_s, window().start_s)}
      </p>
      <Show when={diagnosis.error}>
        <p>What excludes everything could not be found out: {String(diagnosis.error?.message ?? diagnosis.error)}</p>
      </Show>
      <Show when={!diagnosis.error && diagnosis()} fallback={<Show when={!diagnosis.error}>Looking for what excludes everything …</Show>}>
        {(found) => (
          <>
            <For each={found().culprits}>
              {(culprit) => (
                <p>
                  <code>{printMatcher(culprit.matcher)}</code> excludes everything: without it there {"is "}
                  {formatValue(culprit.without, props.answer.measure)}.{" "}
                  <button type="button" class="control" onClick={() => page.commitSelector(printMatchers(withoutMatcher(props.answer.question.matchers, culprit.index)))}>
                    Leave it out
                  </button>
                </p>
              )}
            </For>
            <Show when={found().elsewhere}>
              {(elsewhere) => (
                <p>
                  The time excludes everything: there is something in {elsewhere().label}.{" "}
                  <button type="button" class="control" onClick={() => page.navigate(elsewhere().range)}>
                    Show {elsewhere().label}
                  </button>
                </p>
              )}
            </Show>
            <Show when={isNothing(found())}>
              <p>No single matcher excludes everything, and no other time has anything: start from fewer matchers.</p>
            </Show>
          </>
        )}
      </Show>
    </section>
  );
}
