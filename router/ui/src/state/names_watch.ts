// Waits for names. While the server builds symbol tables of shown files, fetches the flame graph again once they exist.
//
// Each poll fetches the response of the same query without its tree, so that the views change only when names arrive.
// The server runs the whole query for each poll, so the pauses between polls grow.

import { createEffect, createSignal, on, onCleanup, type Accessor } from "solid-js";
import { fetchFlameGraph, fetchPendingFiles, type FlameQuery, type FlameResponse } from "../api/flame_graph";

/** Pauses before the polls, in milliseconds. The last pause repeats. */
const PAUSES_MS = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000];
/**
 * Total time of polling after which the web UI stops, in milliseconds. The server also tries to build a table for this
 * time.
 */
const TIMEOUT_MS = 300_000;

interface Watched {
  readonly response: Accessor<FlameResponse | undefined>;
  /**
   * False while the views must not change, or nobody sees them. Then nothing is fetched, and the time does not count.
   */
  readonly canRedraw: Accessor<boolean>;
  redraw(response: FlameResponse): void;
}

export interface NamesWatch {
  /** True if names have not arrived for so long that polling has stopped. */
  readonly hasTimedOut: Accessor<boolean>;
}

export function createNamesWatch({ response, canRedraw, redraw }: Watched): NamesWatch {
  const [hasTimedOut, setTimedOut] = createSignal(false);
  // The query whose names are awaited. A response with only some of the names does not restart the timeout.
  let query: FlameQuery | undefined;
  let polled_ms = 0;
  // Files whose names are awaited. Only new files restart the pauses, because a live query repeats every few seconds.
  let awaited: readonly string[] = [];
  let polls = 0;

  function begin(shown: FlameResponse | undefined): void {
    if (shown?.query !== query) {
      query = shown?.query;
      polled_ms = 0;
      setTimedOut(false);
    }
    const pending = shown?.pendingFiles ?? [];
    if (pending.some((file) => !awaited.includes(file))) polls = 0;
    awaited = pending;
  }

  createEffect(on(response, begin));
  createEffect(
    on([response, canRedraw], ([shown, isAllowed]) => {
      if (!isAllowed || shown === undefined || shown.pendingFiles.length === 0) return;
      const stop = new AbortController();
      let timer: ReturnType<typeof setTimeout>;
      const schedule = (): void => {
        if (polled_ms >= TIMEOUT_MS) return void setTimedOut(true);
        const pause_ms = PAUSES_MS[Math.min(polls, PAUSES_MS.length - 1)];
        timer = setTimeout(() => void poll(pause_ms), pause_ms);
      };
      const poll = async (pause_ms: number): Promise<void> => {
        polls++;
        polled_ms += pause_ms;
        const named = await responseWithNames(shown, stop.signal);
        if (stop.signal.aborted) return;
        if (named === undefined) schedule();
        else redraw(named);
      };
      schedule();
      onCleanup(() => {
        stop.abort();
        clearTimeout(timer);
      });
    }),
  );
  return { hasTimedOut };
}

/** Fetches the response to the same query if at least one file has its names now; otherwise undefined, as on errors. */
async function responseWithNames(shown: FlameResponse, signal: AbortSignal): Promise<FlameResponse | undefined> {
  try {
    const pending = await fetchPendingFiles(shown.query, signal);
    const areAllPending = shown.pendingFiles.every((file) => pending.includes(file));
    return areAllPending ? undefined : await fetchFlameGraph(shown.query, signal);
  } catch (_unreachable) {
    // The next poll tries again. The user's own queries report the error.
    return undefined;
  }
}
