import { expect, test } from "vitest";
import {
  duration,
  formatAxis,
  formatRate,
  formatValue,
  groupDigits,
  measureOf,
  perCent,
  plainNumber,
  profileTypeLabel,
  rateOf,
  shortCount,
} from "../../src/text/format";

const CPU = measureOf("process_cpu:cpu:nanoseconds:cpu:nanoseconds", false);
const INUSE = measureOf("memory:inuse_space:bytes:space:bytes", true);
const ALLOC = measureOf("memory:alloc_space:bytes:space:bytes", false);
const COUNT = measureOf("memory:alloc_objects:count:space:bytes", false);
const OFF_CPU = measureOf("off_cpu:off_cpu:nanoseconds:off_cpu:nanoseconds", false);

test("CPU time is shown in CPU seconds, and its rate in cores", () => {
  expect(formatValue(12_300_000_000, CPU)).toBe("12.3 CPU s");
  expect(formatValue(50_000_000, CPU)).toBe("50.0 CPU ms");
  expect(formatRate(4.2, CPU)).toBe("4.20 cores");
  expect(formatRate(0.0042, CPU)).toBe("4.20 mcores");
  expect(formatRate(0, CPU)).toBe("0 cores");
  expect(rateOf(120e9, CPU, 60)).toBeCloseTo(2, 12);
});

test("axis labels have no trailing zeros", () => {
  expect([0, 0.5, 1, 2.25, 10, 150, 0.005].map((rate) => formatAxis(rate, CPU))).toEqual([
    "0 cores",
    "0.5 cores",
    "1 core",
    "2.25 cores",
    "10 cores",
    "150 cores",
    "5 mcores",
  ]);
  expect(formatAxis(1500, COUNT)).toBe("1.5 k/s");
});

test("other time is not called CPU time", () => {
  expect(formatValue(1_500_000, OFF_CPU)).toBe("1.50 ms");
  expect(formatRate(1.5, OFF_CPU)).toBe("1.50 s/s");
});

test("memory has binary units, and a gauge has no rate", () => {
  expect(formatValue(3 * 1024 ** 3, INUSE)).toBe("3.00 GiB");
  expect(formatRate(1024, INUSE)).toBe("1.00 KiB");
  expect(formatRate(2 * 1024 ** 2, ALLOC)).toBe("2.00 MiB/s");
  expect(formatValue(1023, ALLOC)).toBe("1,023 B");
  expect(formatValue(1024 * 1023.9, ALLOC)).toBe("1.00 MiB");
  expect(rateOf(77, INUSE, 60)).toBe(77);
});

test("counts are grouped or shortened", () => {
  expect(formatValue(999, COUNT)).toBe("999");
  expect(formatValue(1_234_567, COUNT)).toBe("1.23 M");
  expect(formatRate(12, COUNT)).toBe("12/s");
  expect(shortCount(2460)).toBe("2.46 k");
  expect(formatValue(5, { unit: "parsecs", cpu: false, gauge: false, sampleType: "x" })).toBe("5 parsecs");
});

test("per cent never rounds a part to 0 or an incomplete whole to 100", () => {
  expect(perCent(1, 3)).toBe("33.3 %");
  expect(perCent(1, 1_000_000)).toBe("< 0.1 %");
  expect(perCent(999_999, 1_000_000)).toBe("> 99.9 %");
  expect(perCent(5, 5)).toBe("100.0 %");
  expect(perCent(0, 5)).toBe("0.0 %");
  expect(perCent(0, 0)).toBe("0.0 %");
});

test("durations have the most readable unit", () => {
  expect([0, 5e-9, 5e-6, 0.25, 90, 86_400].map((s) => duration(s))).toEqual([
    "0 s",
    "5.00 ns",
    "5.00 µs",
    "250 ms",
    "90.0 s",
    "24.0 h",
  ]);
  expect(plainNumber(12_345)).toBe("12,345");
  expect(plainNumber(0.0001234)).toBe("0.00012");
  expect(plainNumber(1.2e-8)).toBe("1.2e-8");
});

test("digits of any number are grouped", () => {
  expect(groupDigits("123456789012345678901234567890")).toBe("123,456,789,012,345,678,901,234,567,890");
  expect(groupDigits("-1234")).toBe("-1,234");
});

test("a profile type's menu entry is its name and sample type", () => {
  expect(profileTypeLabel("process_cpu:cpu:nanoseconds:cpu:nanoseconds")).toBe("process_cpu: cpu");
});
