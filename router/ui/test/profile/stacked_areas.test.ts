import { expect, test } from "vitest";
import { AREAS_MAX, completeCount, stackAreas, type MatrixSeries } from "../../src/profile/stacked_areas";

function series(name: string, ...values: number[]): MatrixSeries {
  return { metric: { s: name }, values: values.map((value, i) => [100 + i * 10, String(value)]) };
}

test("areas are stacked from the largest, and missing points count as 0", () => {
  const stacked = stackAreas([series("small", 1, 1), { metric: { s: "big" }, values: [[110, "5"]] }], "s", {
    start_s: 100,
    end_s: 120,
    step_s: 10,
  });
  expect(stacked.areas.map((area) => [area.name, [...area.values]])).toEqual([
    ["big", [0, 5, 0]],
    ["small", [1, 1, 0]],
  ]);
  expect([...stacked.sum]).toEqual([1, 6, 0]);
});

test("small series share an area, and the sum includes them", () => {
  const many = Array.from({ length: 30 }, (_, i) => series(`s${i}`, i + 1));
  const stacked = stackAreas(many, "s", { start_s: 100, end_s: 100, step_s: 10 });
  expect(stacked.areas).toHaveLength(AREAS_MAX);
  expect(stacked.areas.at(-1)).toMatchObject({ name: null, count: 21, hue: -1 });
  expect(stacked.sum[0]).toBe((30 * 31) / 2);
  expect(new Set(stacked.areas.map((area) => area.hue)).size).toBe(AREAS_MAX);
});

test("a colour stays the same when two areas swap places", () => {
  const hues = (a: number, b: number): Record<string, number> =>
    Object.fromEntries(
      stackAreas([series("api", a), series("web", b)], "s", { start_s: 100, end_s: 100, step_s: 10 }).areas.map(
        (area) => [area.name, area.hue],
      ),
    );
  expect(hues(1, 2)).toEqual(hues(2, 1));
});

test("incomplete points are skipped unless there are no others", () => {
  const stacked = stackAreas([series("a", 1, 1, 1, 0)], "s", { start_s: 100, end_s: 130, step_s: 10 });
  expect(completeCount(stacked, 135, 10)).toBe(3);
  expect(completeCount(stacked, 1000, 10)).toBe(4);
  const fresh = stackAreas([series("a", 0, 0, 0, 7)], "s", { start_s: 100, end_s: 130, step_s: 10 });
  expect(completeCount(fresh, 135, 10)).toBe(4);
});
