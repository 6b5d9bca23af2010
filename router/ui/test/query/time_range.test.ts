import { expect, test } from "vitest";
import { absoluteRange, isRelative, offsetText, rangeLabel, resolveRange, widened } from "../../src/query/time_range";

test("relative ends move with the clock, absolute ones do not", () => {
  expect(resolveRange({ from: "now-15m", to: "now" }, 10_000)).toEqual({ start_s: 9100, end_s: 10_000 });
  expect(resolveRange({ from: "now-2d", to: "now-1d" }, 200_000)).toEqual({ start_s: 27_200, end_s: 113_600 });
  expect(resolveRange({ from: "100.25", to: "200" }, 10_000)).toEqual({ start_s: 100.25, end_s: 200 });
  expect(isRelative({ from: "now-15m", to: "now" })).toBe(true);
  expect(isRelative({ from: "1", to: "2" })).toBe(false);
});

test("a malformed or empty range is refused", () => {
  for (const [from, to] of [
    ["now", "now-15m"],
    ["x", "now"],
    ["5", "5"],
    ["now-15y", "now"],
    ["", ""],
    ["1e9", "now"],
  ]) {
    expect(resolveRange({ from, to }, 10_000)).toBe(null);
  }
});

test("a copied link has absolute times to the millisecond", () => {
  expect(absoluteRange({ start_s: 1700000000.1239, end_s: 1700000900 })).toEqual({
    from: "1700000000.124",
    to: "1700000900",
  });
});

test("widening keeps the middle and ends at the current time at the latest", () => {
  expect(widened({ start_s: 100, end_s: 200 }, 1000)).toEqual({ start_s: 50, end_s: 250 });
  expect(widened({ start_s: 900, end_s: 1000 }, 1000)).toEqual({ start_s: 800, end_s: 1000 });
});

test("labels of ranges are readable", () => {
  expect(rangeLabel({ from: "now-1h", to: "now" }, null)).toBe("Last hour");
  expect(rangeLabel({ from: "now-7d", to: "now" }, null)).toBe("Last 7 days");
  expect(rangeLabel({ from: "now-45m", to: "now" }, null)).toBe("Last 45 minutes");
  expect(rangeLabel({ from: "now-1w", to: "now" }, null)).toBe("Last week");
  expect(rangeLabel({ from: "0", to: "60" }, { start_s: 0, end_s: 60 })).toMatch(
    /^1970-01-01 \d\d:00:00 – \d\d:01:00$/,
  );
  expect(offsetText(0)).toMatch(/^UTC[+-]\d\d:\d\d$/);
});
