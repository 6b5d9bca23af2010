// One question at a time, and the last good answer until the next one is there.
//
// Invariant: `latest` never goes back to nothing, and an answer that a newer question has overtaken
// is dropped. So the picture stays while loading, on errors, and after a cancel.

import { createSignal, type Accessor } from "solid-js";
import { type ApiError, asApiError } from "../api/client";

export interface Loader<T> {
  readonly latest: Accessor<T | undefined>;
  /** Why the last question has no answer; undefined after a success. */
  readonly failure: Accessor<ApiError | undefined>;
  readonly pending: Accessor<boolean>;
  /** True when the question has been under way for `SLOW_MS`. */
  readonly slow: Accessor<boolean>;
  /** Asks; a question under way is cancelled. Resolves when it has ended in any way. */
  run(ask: (signal: AbortSignal) => Promise<T>): Promise<void>;
  cancel(): void;
  /** Takes an answer that was asked for elsewhere, unless a question is under way. */
  put(answer: T): void;
}

/** A wait is shown after this long, in milliseconds: below it a flash would only disturb. */
export const SLOW_MS = 300;

export function createLoader<T>(): Loader<T> {
  const [latest, setLatest] = createSignal<T>();
  const [failure, setFailure] = createSignal<ApiError>();
  const [pending, setPending] = createSignal(false);
  const [slow, setSlow] = createSignal(false);
  let underWay: AbortController | null = null;

  async function run(ask: (signal: AbortSignal) => Promise<T>): Promise<void> {
    underWay?.abort();
    const mine = new AbortController();
    underWay = mine;
    setPending(true);
    const timer = setTimeout(() => underWay === mine && setSlow(true), SLOW_MS);
    try {
      const answer = await ask(mine.signal);
      if (underWay !== mine) return;
      setFailure(undefined);
      setLatest(() => answer);
    } catch (error) {
      const reason = asApiError(error);
      if (underWay === mine && reason.kind !== "cancelled") setFailure(reason);
    } finally {
      clearTimeout(timer);
      if (underWay === mine) {
        underWay = null;
        setPending(false);
        setSlow(false);
      }
    }
  }

  function cancel(): void {
    underWay?.abort();
  }

  function put(answer: T): void {
    if (underWay === null) setLatest(() => answer);
  }

  return { latest, failure, pending, slow, run, cancel, put };
}
