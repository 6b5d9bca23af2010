import { createRoot, createSignal } from "solid-js";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { fetchFlameGraph, fetchPendingFiles, type FlameResponse } from "../../src/api/flame_graph";
import { createNamesWatch, type NamesWatch } from "../../src/state/names_watch";

vi.mock("../../src/api/flame_graph");
const polls = vi.mocked(fetchPendingFiles);
const redraws = vi.mocked(fetchFlameGraph);

beforeEach(() => {
  vi.resetAllMocks();
  vi.useFakeTimers();
});
afterEach(() => void vi.useRealTimers());

const QUERY = {
  profileType: "cpu",
  matchers: [],
  window: { start_s: 0, end_s: 1 },
  range: { from: "0", to: "1" },
  foldsInterpreters: false,
};
const responseOf = (...pendingFiles: string[]): FlameResponse =>
  ({ query: QUERY, pendingFiles }) as unknown as FlameResponse;

interface Setup {
  readonly watch: NamesWatch;
  readonly shown: FlameResponse[];
  setResponse(response: FlameResponse): void;
  setAllowed(isAllowed: boolean): void;
}

/** Watches a response with these pending files. `shown` collects the responses that were redrawn. */
function watching(...pendingFiles: string[]): Setup {
  const shown: FlameResponse[] = [];
  const [response, setResponse] = createSignal<FlameResponse>(responseOf(...pendingFiles));
  const [canRedraw, setAllowed] = createSignal(true);
  const redraw = (named: FlameResponse): void => {
    shown.push(named);
    setResponse(() => named);
  };
  return createRoot(() => ({
    watch: createNamesWatch({ response, canRedraw, redraw }),
    shown,
    setResponse: (next) => setResponse(() => next),
    setAllowed,
  }));
}

test("names are fetched when they arrive, and polling stops", async () => {
  const { shown } = watching("libc");
  polls.mockResolvedValueOnce(["libc"]).mockResolvedValueOnce([]);
  redraws.mockResolvedValueOnce(responseOf());
  await vi.advanceTimersByTimeAsync(1_000);
  expect([polls.mock.calls.length, shown.length]).toEqual([1, 0]);
  await vi.advanceTimersByTimeAsync(500);
  expect(shown).toEqual([responseOf()]);
  await vi.advanceTimersByTimeAsync(600_000);
  expect([polls.mock.calls.length, redraws.mock.calls.length]).toEqual([2, 1]);
});

test("some of the names are shown, and the others are waited for", async () => {
  const { shown } = watching("libc", "libssl");
  polls.mockResolvedValueOnce(["libssl"]).mockResolvedValueOnce(["libssl"]).mockResolvedValueOnce([]);
  redraws.mockResolvedValueOnce(responseOf("libssl")).mockResolvedValueOnce(responseOf());
  await vi.advanceTimersByTimeAsync(500);
  expect(shown).toEqual([responseOf("libssl")]);
  // The pauses continue to grow after some of the names arrived.
  await vi.advanceTimersByTimeAsync(999);
  expect(polls).toHaveBeenCalledTimes(1);
  await vi.advanceTimersByTimeAsync(1 + 2_000);
  expect(shown).toEqual([responseOf("libssl"), responseOf()]);
});

test("pauses grow, and polling stops after five minutes", async () => {
  const { watch, setResponse } = watching("libc");
  polls.mockResolvedValue(["libc"]);
  await vi.advanceTimersByTimeAsync(299_000);
  expect(watch.hasTimedOut()).toBe(false);
  await vi.advanceTimersByTimeAsync(31_000);
  expect(watch.hasTimedOut()).toBe(true);
  expect(polls.mock.calls.length).toBeLessThanOrEqual(16);
  const before = polls.mock.calls.length;
  await vi.advanceTimersByTimeAsync(600_000);
  expect(polls).toHaveBeenCalledTimes(before);
  // Names of a new query are awaited again.
  setResponse({ ...responseOf("libc"), query: { ...QUERY } });
  expect(watch.hasTimedOut()).toBe(false);
  await vi.advanceTimersByTimeAsync(30_000);
  expect(polls).toHaveBeenCalledTimes(before + 1);
});

test("while redraws are held, nothing wakes up and no time counts", async () => {
  const { watch, shown, setAllowed } = watching("libc");
  polls.mockResolvedValue([]);
  redraws.mockResolvedValue(responseOf());
  setAllowed(false);
  expect(vi.getTimerCount()).toBe(0);
  await vi.advanceTimersByTimeAsync(600_000);
  expect(polls).not.toHaveBeenCalled();
  expect(watch.hasTimedOut()).toBe(false);
  setAllowed(true);
  await vi.advanceTimersByTimeAsync(500);
  expect(shown).toEqual([responseOf()]);
});

test("a response that arrives while redraws are held is not shown", async () => {
  const { shown, setAllowed } = watching("libc");
  let resolve!: (files: readonly string[]) => void;
  polls.mockReturnValueOnce(new Promise((resolvePromise) => (resolve = resolvePromise)));
  redraws.mockResolvedValue(responseOf());
  await vi.advanceTimersByTimeAsync(500);
  setAllowed(false);
  resolve([]);
  await vi.advanceTimersByTimeAsync(10_000);
  expect(shown).toEqual([]);
});

test("a failed poll is tried again", async () => {
  const { shown } = watching("libc");
  polls.mockRejectedValueOnce(new Error("no connection")).mockResolvedValueOnce([]);
  redraws.mockResolvedValueOnce(responseOf());
  await vi.advanceTimersByTimeAsync(1_500);
  expect(shown).toEqual([responseOf()]);
});
