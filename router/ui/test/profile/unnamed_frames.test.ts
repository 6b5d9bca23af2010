import { expect, test } from "vitest";
import { nameCounts, reasonOf } from "../../src/profile/unnamed_frames";

const of = (reason: string, text: string, frames = 1) => ({ reason, text, binary: "/lib/a.so", frames, value: 1 });

test("frames with one reason and one binary have their own sentences", () => {
  const unnamed = [of("no_debug_file", "build 1 is missing"), of("no_debug_file", "build 2 is missing")];
  const frame = { reason: "no_debug_file", binary: "/lib/a.so" };
  expect(reasonOf({ ...frame, unnamed: 0 }, unnamed)).toBe("No name: build 1 is missing");
  expect(reasonOf({ ...frame, unnamed: 1 }, unnamed)).toBe("No name: build 2 is missing");
  expect(reasonOf(frame, unnamed)).toBe("No name: no_debug_file");
  expect(reasonOf({ binary: "/lib/a.so" }, unnamed)).toBe("");
});

test("a frame where unwinding stopped is an incomplete stack", () => {
  const stopped = [of("unwinding_stopped", "error 4018"), of("unwinding_stopped", "error 9999")];
  expect(reasonOf({ reason: "unwinding_stopped", unnamed: 1 }, stopped)).toBe("Incomplete stack: error 9999");
});

test("a name that appears automatically does not ask for another try", () => {
  const unnamed = [of("converting", "the symbol table is being built: retry in a few seconds")];
  expect(reasonOf({ reason: "converting", unnamed: 0 }, unnamed)).toContain("appears automatically");
});

test("frames where unwinding stopped do not count as unnamed", () => {
  const [stopped, unnamed] = [of("unwinding_stopped", "error 4018", 3), of("no_debug_file", "a is missing", 2)];
  const counts = nameCounts({ frames: 105, named: 100, unnamed: [unnamed, stopped] });
  expect(counts).toEqual({ frames: 102, named: 100, unnamed: [unnamed], stopped: [stopped] });
});
