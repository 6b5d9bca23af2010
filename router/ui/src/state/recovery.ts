// Reconnects: polls `/ready` every second while the server is unreachable, then repeats the queries.

import { createEffect, onCleanup, type Accessor } from "solid-js";
import { call } from "../api/client";

const POLL_MS = 1_000;

/**
 * Calls `retry` when `/ready` responds. Polls only while `isUnreachable` is true.
 *
 * `isBusy` is true while queries are running. A retry would only cancel them.
 */
export function createRecovery(isUnreachable: Accessor<boolean>, isBusy: () => boolean, retry: () => void): void {
  createEffect(() => {
    if (!isUnreachable()) return;
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout>;
    const poll = async (): Promise<void> => {
      try {
        await call("ready", {}, stop.signal);
        if (!stop.signal.aborted && !isBusy()) retry();
      } catch (_unreachable) {
        // Expected until the server is back; a notice already shows the failure.
      }
      // Polling goes on after `retry`: its queries may fail in the same way, and then no signal changes.
      if (!stop.signal.aborted) timer = setTimeout(() => void poll(), POLL_MS);
    };
    timer = setTimeout(() => void poll(), POLL_MS);
    onCleanup(() => {
      stop.abort();
      clearTimeout(timer);
    });
  });
}
