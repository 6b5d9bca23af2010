import { expect, test } from "vitest";
import { serverTime } from "../../src/api/flame_graph";

test("the server's time is the header's total, or the sum of its parts", () => {
  expect(serverTime("select;dur=9.1, merge;dur=3.2, total;dur=14.2")).toBe(14.2);
  expect(serverTime('select;desc="read";dur=9.5, merge;dur=3')).toBe(12.5);
  expect(serverTime("miss")).toBe(null);
  expect(serverTime(null)).toBe(null);
});
