import { expect, test } from "vitest";
import { AREAS_MAX, settledCount, stackAreas, type MatrixSeries } from "../../src/profile/stacked_areas";
import { POINTS_MAX, timelineQuery, timelineStep } from "../../src/query/range_query";

test("steps keep the number of points bounded for any window", () => {
  for (const length_s of [1, 30, 60, 900, 3600, 86_400, 30 * 86_400, 10 * 365 * 86_400]) {
    const step_s = timelineStep({ start_s: 0, end_s: length_s });
    expect(length_s / step_s).toBeLessThanOrEqual(POINTS_MAX);
    expect(step_s).toBeGreaterThanOrEqual(1);
  }
  expect(timelineStep({ start_s: 0, end_s: 900 })).toBe(5);
});

test("counters are asked by rate, gauges by their last value", () => {
  const window = { start_s: 1000, end_s: 1900 };
  expect(timelineQuery("t", false, [], "service_name", window, false)).toEqual({
    query: 'sum by (service_name) (rate({__profile_type__="t"}[5s]))', start_s: 1005, end_s: 1900, step_s: 5,
  });
  expect(timelineQuery("t", true, [{ label: "a", operator: "=", value: "b" }], "", window, false).query).toBe(
    'sum(last_over_time({__profile_type__="t", a="b"}[300s]))',
  );
});

test("points of a moving window stand still while the clock moves", () => {
  const first = timelineQuery("t", false, [], "", { start_s: 1000.2, end_s: 1900.2 }, true);
  const later = timelineQuery("t", false, [], "", { start_s: 1003.9, end_s: 1903.9 }, true);
  expect(later.end_s).toBe(first.end_s);
  expect(first.end_s % first.step_s).toBe(0);
});

function series(name: string, ...values: number[]): MatrixSeries {
  return { metric: { s: name }, values: values.map((value, i) => [100 + i * 10, String(value)]) };
}

test("areas are stacked from the largest, and missing points are nothing", () => {
  const stacked = stackAreas([series("small", 1, 1), { metric: { s: "big" }, values: [[110, "5"]] }], "s", 100, 120, 10);
  expect(stacked.areas.map((area) => [area.name, [...area.values]])).toEqual([["big", [0, 5, 0]], ["small", [1, 1, 0]]]);
  expect([...stacked.sum]).toEqual([1, 6, 0]);
});

test("small series go together and the sum keeps them", () => {
  const many = Array.from({ length: 30 }, (_, i) => series(`s${i}`, i + 1));
  const stacked = stackAreas(many, "s", 100, 100, 10);
  expect(stacked.areas).toHaveLength(AREAS_MAX);
  expect(stacked.areas.at(-1)).toMatchObject({ name: null, count: 21, hue: -1 });
  expect(stacked.sum[0]).toBe((30 * 31) / 2);
  expect(new Set(stacked.areas.map((area) => area.hue)).size).toBe(AREAS_MAX);
});

test("a colour does not change when two areas change places", () => {
  const hues = (a: number, b: number): Record<string, number> =>
    Object.fromEntries(stackAreas([series("api", a), series("web", b)], "s", 100, 100, 10).areas.map((area) => [area.name, area.hue]));
  expect(hues(1, 2)).toEqual(hues(2, 1));
});

test("points that agents are still sending are left out, unless there is nothing else", () => {
  const stacked = stackAreas([series("a", 1, 1, 1, 0)], "s", 100, 130, 10);
  expect(settledCount(stacked, 135, 10)).toBe(3);
  expect(settledCount(stacked, 1000, 10)).toBe(4);
  const fresh = stackAreas([series("a", 0, 0, 0, 7)], "s", 100, 130, 10);
  expect(settledCount(fresh, 135, 10)).toBe(4);
});
