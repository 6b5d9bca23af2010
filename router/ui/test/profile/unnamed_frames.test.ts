import { expect, test } from "vitest";
import { reasonOf } from "../../src/profile/unnamed_frames";

const of = (binary: string, text: string) => ({ reason: "no_debug_file", text, binary, frames: 1, value: 1 });

test("an unnamed frame has the sentence of its own binary", () => {
  const unnamed = [of("/lib/a.so", "a is broken"), of("/lib/b.so", "b is missing"), of("", "somewhere")];
  const why = (frame: { reason?: string; binary?: string }) => reasonOf(frame, unnamed);
  expect(why({ reason: "no_debug_file", binary: "/lib/a.so" })).toBe("a is broken");
  expect(why({ reason: "no_debug_file", binary: "/lib/b.so" })).toBe("b is missing");
  expect(why({ reason: "no_debug_file" })).toBe("somewhere");
  expect(why({ reason: "other", binary: "/lib/a.so" })).toBe("other");
  expect(why({ binary: "/lib/a.so" })).toBe("");
});
