import { expect, test } from "vitest";
import { DEFAULT_STATE, readState, writeState, type PageState } from "../../src/state/url_state";
import { absoluteRange, isRelative, offsetText, rangeLabel, resolveRange, widened } from "../../src/query/time_range";

test("every field of the state survives the address", () => {
  const full: PageState = {
    type: "memory:inuse_space:bytes:space:bytes",
    query: '{service_name="a&b=c", f=~"<script>.*"}',
    from: "1700000000.5",
    to: "1700000900",
    by: "",
    view: "flame",
    search: "^json\\.(de|en)code#+ %",
    pick: "operator new[]",
    zoom: "abc-def",
    flip: true,
    sort: "name",
    descending: false,
    live: false,
  };
  expect(readState(writeState(full))).toEqual(full);
  for (const key of Object.keys(full) as Array<keyof PageState>) {
    expect(full[key], `the test leaves ${key} at its default`).not.toBe(DEFAULT_STATE[key]);
    // The two ends of the time only make sense together.
    const ends = key === "from" || key === "to" ? { from: full.from, to: full.to } : {};
    const one = { ...DEFAULT_STATE, [key]: full[key], ...ends };
    expect(readState(writeState(one))).toEqual(one);
  }
});

test("the default state needs no address, rubbish is the default", () => {
  expect(writeState(DEFAULT_STATE)).toBe("");
  expect(readState("?view=rubbish&sort=7&flip=maybe&unknown=1&from=yesterday&to=now")).toEqual(DEFAULT_STATE);
});

test("relative ends move with the clock, absolute ones do not", () => {
  expect(resolveRange({ from: "now-15m", to: "now" }, 10_000)).toEqual({ start_s: 9100, end_s: 10_000 });
  expect(resolveRange({ from: "now-2d", to: "now-1d" }, 200_000)).toEqual({ start_s: 27_200, end_s: 113_600 });
  expect(resolveRange({ from: "100.25", to: "200" }, 10_000)).toEqual({ start_s: 100.25, end_s: 200 });
  expect(isRelative({ from: "now-15m", to: "now" })).toBe(true);
  expect(isRelative({ from: "1", to: "2" })).toBe(false);
});

test("a malformed or empty window is none", () => {
  for (const [from, to] of [["now", "now-15m"], ["x", "now"], ["5", "5"], ["now-15y", "now"], ["", ""], ["1e9", "now"]]) {
    expect(resolveRange({ from, to }, 10_000)).toBe(null);
  }
});

test("a copied link has absolute times to the millisecond", () => {
  expect(absoluteRange({ start_s: 1700000000.1239, end_s: 1700000900 })).toEqual({ from: "1700000000.124", to: "1700000900" });
});

test("widening keeps the middle and does not pass now", () => {
  expect(widened({ start_s: 100, end_s: 200 }, 1000)).toEqual({ start_s: 50, end_s: 250 });
  expect(widened({ start_s: 900, end_s: 1000 }, 1000)).toEqual({ start_s: 800, end_s: 1000 });
});

test("ranges are said as people say them", () => {
  expect(rangeLabel({ from: "now-1h", to: "now" }, null)).toBe("last 1 h");
  expect(rangeLabel({ from: "now-45m", to: "now" }, null)).toBe("last 45 min");
  expect(rangeLabel({ from: "0", to: "60" }, { start_s: 0, end_s: 60 })).toMatch(/^1970-01-01 \d\d:00:00 – \d\d:01:00$/);
  expect(offsetText(0)).toMatch(/^UTC[+-]\d\d:\d\d$/);
});
