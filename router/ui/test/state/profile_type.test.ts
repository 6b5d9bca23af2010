import { expect, test } from "vitest";
import { defaultType, typeOfMetric } from "../../src/state/profile_type";

const CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";
const SAMPLES = "process_cpu:samples:count:cpu:nanoseconds";
const INUSE = "memory:inuse_space:bytes:space:bytes";
const ALLOC = "memory:alloc_space:bytes:space:bytes";

test("the default type is CPU time, or the first stored type", () => {
  expect(defaultType([INUSE, SAMPLES, CPU])).toBe(CPU);
  expect(defaultType([INUSE])).toBe(INUSE);
  expect(defaultType([])).toBe("");
});

test("a short name means the type whose sample type is its period type", () => {
  expect(typeOfMetric("process_cpu", [SAMPLES, CPU])).toBe(CPU);
  expect(typeOfMetric(SAMPLES, [SAMPLES, CPU])).toBe(SAMPLES);
  expect(() => typeOfMetric("memory", [INUSE, ALLOC])).toThrow("several profile types");
  expect(() => typeOfMetric("disk", [CPU])).toThrow("no profile type is called disk");
});
