// A server that went away is asked every second whether it is back, and then everything is asked again.

import { createEffect, onCleanup, type Accessor } from "solid-js";
import { call } from "../api/client";

const POLL_MS = 1_000;

/**
 * Calls `retry` when `/ready` answers, as long as `isLost`.
 *
 * `isBusy`: questions are under way; a retry would only cancel them.
 */
export function createRecovery(isLost: Accessor<boolean>, isBusy: () => boolean, retry: () => void): void {
  createEffect(() => {
    if (!isLost()) return;
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout>;
    const poll = async (): Promise<void> => {
      try {
        await call("ready", {}, stop.signal);
        if (!stop.signal.aborted && !isBusy()) retry();
      } catch (_stillAway) {
        // Expected until it is back: the notice on the page says so already.
      }
      // Goes on after `retry` too: its questions may fail in the same way, which changes no signal.
      if (!stop.signal.aborted) timer = setTimeout(() => void poll(), POLL_MS);
    };
    timer = setTimeout(() => void poll(), POLL_MS);
    onCleanup(() => {
      stop.abort();
      clearTimeout(timer);
    });
  });
}
