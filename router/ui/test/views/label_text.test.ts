import { expect, test } from "vitest";
import { LabelFitter } from "../../src/views/flame/label_text";

test("labels are shortened to their width, never inside a character", () => {
  const fitter = new LabelFitter(() => 10);
  expect(fitter.fit("abcdef", 60)).toBe("abcdef");
  expect(fitter.fit("abcdef", 59)).toBe("abcd…");
  expect(fitter.fit("abcdef", 29)).toBe("");
  expect(fitter.fit("😀😀😀", 29)).toBe("😀…");
  expect(fitter.fit("x".repeat(5000), 50)).toBe("xxxx…");
});
