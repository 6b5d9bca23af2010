import { expect, test } from "vitest";
import { ApiError } from "../../src/api/client";
import { createLoader } from "../../src/state/loader";

/** A call that ends when the test says so. Like `fetch`, it also ends if it is cancelled. */
interface ControlledCall<T> {
  fetch(signal: AbortSignal): Promise<T>;
  resolve(value: T): void;
}

function controlled<T>(): ControlledCall<T> {
  let resolve!: (value: T) => void;
  let reject!: (error: unknown) => void;
  const response = new Promise<T>((resolvePromise, rejectPromise) => {
    resolve = resolvePromise;
    reject = rejectPromise;
  });
  return {
    resolve,
    fetch: (signal) => {
      signal.addEventListener("abort", () => reject(new ApiError("cancelled", "cancelled")));
      return response;
    },
  };
}

test("the last response stays while loading, on an error, and after a cancel", async () => {
  const loader = createLoader<string>();
  await loader.run(() => Promise.resolve("first"));
  expect([loader.latest(), loader.pending()]).toEqual(["first", false]);

  await loader.run(() => Promise.reject(new ApiError("refused", "too much")));
  expect([loader.latest(), loader.failure()?.message]).toEqual(["first", "too much"]);

  const slow = controlled<string>();
  const running = loader.run((signal) => slow.fetch(signal));
  expect([loader.latest(), loader.pending()]).toEqual(["first", true]);
  loader.cancel();
  await running;
  expect([loader.latest(), loader.pending(), loader.failure()?.message]).toEqual(["first", false, "too much"]);

  await loader.run(() => Promise.resolve("second"));
  expect([loader.latest(), loader.failure()]).toEqual(["second", undefined]);
});

test("the response to an older call is dropped", async () => {
  const loader = createLoader<string>();
  const older = controlled<string>();
  const newer = controlled<string>();
  // The older call ignores that it is cancelled, so its response still arrives.
  const first = loader.run(() => older.fetch(new AbortController().signal));
  const second = loader.run((signal) => newer.fetch(signal));
  newer.resolve("newer");
  await second;
  older.resolve("older");
  await first;
  expect([loader.latest(), loader.pending()]).toEqual(["newer", false]);
});

test("any thrown value becomes an error with a message", async () => {
  const loader = createLoader<string>();
  await loader.run(() => Promise.reject(new TypeError("node 5 of the response has parent 7")));
  expect(loader.failure()).toMatchObject({ kind: "refused", message: "node 5 of the response has parent 7" });
});
