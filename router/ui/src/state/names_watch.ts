// Waits for names: while the server builds symbol tables of shown files, fetches the flame graph again once they exist.
//
// Each poll fetches the response of the same query without its tree, so that the views change only when names arrive.

import { createEffect, createSignal, on, onCleanup, type Accessor } from "solid-js";
import { fetchFlameGraph, fetchPendingFiles, type FlameQuery, type FlameResponse } from "../api/flame_graph";

/** Milliseconds before each poll; the last value repeats. */
const PAUSES_MS = [500, 1_000, 1_000, 2_000, 2_000, 3_000, 5_000, 10_000];
/** Time after which the web UI stops polling, as long as the server tries to build a symbol table. */
const TIMEOUT_MS = 300_000;

interface Watched {
  readonly response: Accessor<FlameResponse | undefined>;
  /** False while the views must not change or nobody sees them; nothing is fetched then. */
  canRedraw(): boolean;
  redraw(response: FlameResponse): void;
}

export interface NamesWatch {
  /** True when names have not arrived for so long that polling has stopped. */
  readonly hasTimedOut: Accessor<boolean>;
}

export function createNamesWatch({ response, canRedraw, redraw }: Watched): NamesWatch {
  const [hasTimedOut, setTimedOut] = createSignal(false);
  // The query that is waited for: a response with only some of the names does not restart the timeout.
  let query: FlameQuery | undefined;
  let start_ms = 0;

  createEffect(
    on(response, (shown) => {
      setTimedOut(false);
      if (shown === undefined || shown.pendingFiles.length === 0) return;
      if (shown.query !== query) {
        query = shown.query;
        start_ms = Date.now();
      }
      const stop = new AbortController();
      let timer: ReturnType<typeof setTimeout>;
      let polls = 0;
      const schedule = (): void => {
        if (Date.now() - start_ms > TIMEOUT_MS) setTimedOut(true);
        else timer = setTimeout(() => void poll(), PAUSES_MS[Math.min(polls, PAUSES_MS.length - 1)]);
      };
      const poll = async (): Promise<void> => {
        if (canRedraw()) {
          polls++;
          const named = await responseWithNames(shown, stop.signal);
          if (stop.signal.aborted) return;
          // The user may have opened a menu in the meantime; then the next poll redraws.
          if (named !== undefined && canRedraw()) return redraw(named);
        }
        schedule();
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

/** The response to the same query, once at least one file has its names; undefined before, and on errors. */
async function responseWithNames(shown: FlameResponse, signal: AbortSignal): Promise<FlameResponse | undefined> {
  try {
    const pending = await fetchPendingFiles(shown.query, signal);
    const areAllPending = shown.pendingFiles.every((file) => pending.includes(file));
    return areAllPending ? undefined : await fetchFlameGraph(shown.query, signal);
  } catch (_unreachable) {
    // The next poll tries again; the user's own queries report the error.
    return undefined;
  }
}
