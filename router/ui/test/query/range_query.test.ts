import { expect, test } from "vitest";
import { POINTS_MAX, rangeQuery, timelineStep } from "../../src/query/range_query";

test("the step bounds the number of points for any window", () => {
  for (const length_s of [1, 30, 60, 900, 3600, 86_400, 30 * 86_400, 10 * 365 * 86_400]) {
    const step_s = timelineStep({ start_s: 0, end_s: length_s });
    expect(length_s / step_s).toBeLessThanOrEqual(POINTS_MAX);
    expect(step_s).toBeGreaterThanOrEqual(1);
  }
  expect(timelineStep({ start_s: 0, end_s: 900 })).toBe(5);
});

test("counters are queried by rate, gauges by their last value", () => {
  const window = { start_s: 1000, end_s: 1900 };
  expect(rangeQuery("t", false, [], "service_name", window, false)).toEqual({
    query: 'sum by (service_name) (rate({__profile_type__="t"}[5s]))',
    start_s: 1005,
    end_s: 1900,
    step_s: 5,
  });
  expect(rangeQuery("t", true, [{ label: "a", operator: "=", value: "b" }], "", window, false).query).toBe(
    'sum(last_over_time({__profile_type__="t", a="b"}[300s]))',
  );
});

test("points of a moving window stay the same within a step", () => {
  const first = rangeQuery("t", false, [], "", { start_s: 1000.2, end_s: 1900.2 }, true);
  const later = rangeQuery("t", false, [], "", { start_s: 1003.9, end_s: 1903.9 }, true);
  expect(later.end_s).toBe(first.end_s);
  expect(first.end_s % first.step_s).toBe(0);
});
