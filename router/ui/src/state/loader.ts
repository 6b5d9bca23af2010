// Loads one value at a time, and keeps the last good response until the next one arrives.
//
// Invariant: `latest` never becomes undefined again, and the response to an older call is dropped.
// The views therefore stay while a query runs, after an error, and after a cancel.

import { batch, createSignal, untrack, type Accessor } from "solid-js";
import { type ApiError, asApiError } from "../api/client";

export interface Loader<T> {
  readonly latest: Accessor<T | undefined>;
  /** Error of the last call; undefined after a success. */
  readonly failure: Accessor<ApiError | undefined>;
  readonly pending: Accessor<boolean>;
  /** True if a call has been running for at least `SLOW_MS`. */
  readonly slow: Accessor<boolean>;
  /** Starts a call and cancels the running one. Resolves when the new call has ended in any way. */
  run(fetch: (signal: AbortSignal) => Promise<T>): Promise<void>;
  cancel(): void;
  /** Shows a response that was fetched by other code. Does nothing if a call is running. */
  put(response: T): void;
}

/** Time before the web UI shows that it waits, in milliseconds. If it were shorter, the notice would only flicker. */
export const SLOW_MS = 300;

/** Creates a loader. It calls `onChange` before it shows a response, with the new response and the one before. */
export function createLoader<T>(onChange: (next: T, before: T | undefined) => void = () => undefined): Loader<T> {
  const [latest, setLatest] = createSignal<T>();
  const [failure, setFailure] = createSignal<ApiError>();
  const [pending, setPending] = createSignal(false);
  const [slow, setSlow] = createSignal(false);
  let running: AbortController | null = null;

  function show(response: T): void {
    batch(() => {
      onChange(response, untrack(latest));
      setLatest(() => response);
    });
  }

  async function run(fetch: (signal: AbortSignal) => Promise<T>): Promise<void> {
    running?.abort();
    const own = new AbortController();
    running = own;
    setPending(true);
    const timer = setTimeout(() => running === own && setSlow(true), SLOW_MS);
    try {
      const response = await fetch(own.signal);
      if (running !== own) return;
      setFailure(undefined);
      show(response);
    } catch (error) {
      const reason = asApiError(error);
      if (running === own && reason.kind !== "cancelled") setFailure(reason);
    } finally {
      clearTimeout(timer);
      if (running === own) {
        running = null;
        setPending(false);
        setSlow(false);
      }
    }
  }

  function cancel(): void {
    running?.abort();
  }

  function put(response: T): void {
    if (running === null) show(response);
  }

  return { latest, failure, pending, slow, run, cancel, put };
}
