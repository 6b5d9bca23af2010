import { expect, test } from "vitest";
import { ApiError } from "../../src/api/client";
import { serverTime } from "../../src/api/flame_graph";
import { createLoader } from "../../src/state/loader";

/** An answer that comes when told to, or breaks off as `fetch` does. */
function controlled<T>(): { ask(signal: AbortSignal): Promise<T>; resolve(value: T): void; reject(error: unknown): void } {
  let resolve!: (value: T) => void;
  let reject!: (error: unknown) => void;
  const answer = new Promise<T>((yes, no) => ([resolve, reject] = [yes, no]));
  return {
    resolve,
    reject,
    ask: (signal) => {
      signal.addEventListener("abort", () => reject(new ApiError("cancelled", "cancelled")));
      return answer;
    },
  };
}

test("the last answer stays while loading, on an error, and after a cancel", async () => {
  const loader = createLoader<string>();
  await loader.run(() => Promise.resolve("first"));
  expect([loader.latest(), loader.pending()]).toEqual(["first", false]);

  await loader.run(() => Promise.reject(new ApiError("refused", "too much")));
  expect([loader.latest(), loader.failure()?.message]).toEqual(["first", "too much"]);

  const slow = controlled<string>();
  const running = loader.run((signal) => slow.ask(signal));
  expect([loader.latest(), loader.pending()]).toEqual(["first", true]);
  loader.cancel();
  await running;
  expect([loader.latest(), loader.pending(), loader.failure()?.message]).toEqual(["first", false, "too much"]);

  await loader.run(() => Promise.resolve("second"));
  expect([loader.latest(), loader.failure()]).toEqual(["second", undefined]);
});

test("an answer that a newer question has overtaken is dropped", async () => {
  const loader = createLoader<string>();
  const [old, young] = [controlled<string>(), controlled<string>()];
  // This one does not listen to being cancelled: its answer comes all the same.
  const first = loader.run(() => old.ask(new AbortController().signal));
  const second = loader.run((signal) => young.ask(signal));
  young.resolve("young");
  await second;
  old.resolve("old");
  await first;
  expect([loader.latest(), loader.pending()]).toEqual(["young", false]);
});

test("anything thrown is shown as a sentence", async () => {
  const loader = createLoader<string>();
  await loader.run(() => Promise.reject(new TypeError("node 5 of the answer has parent 7")));
  expect(loader.failure()).toMatchObject({ kind: "refused", message: "node 5 of the answer has parent 7" });
});

test("the server's own time is the header's total, or the sum of its parts", () => {
  expect(serverTime("select;dur=9.1, merge;dur=3.2, total;dur=14.2")).toBe(14.2);
  expect(serverTime('select;desc="read";dur=9.5, merge;dur=3')).toBe(12.5);
  expect(serverTime("miss")).toBe(null);
  expect(serverTime(null)).toBe(null);
});
