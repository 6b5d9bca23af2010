import { expect, test } from "vitest";
import { printable, shortened, SHOWN_LENGTH_MAX } from "../../src/text/printable";

test("control characters and bidirectional marks are replaced", () => {
  expect(printable("a\u202eb\u0000c\nd")).toBe("a\ufffdb\ufffdc\ufffdd");
  expect(printable("std::vector<int>")).toBe("std::vector<int>");
});

test("a name of 5 kB is shortened to its two ends", () => {
  const name = "template<".repeat(600);
  const shown = shortened(name);
  expect(shown.length).toBeLessThan(SHOWN_LENGTH_MAX + 60);
  expect(shown).toContain(`${name.length - SHOWN_LENGTH_MAX} more characters`);
  expect(shortened("short")).toBe("short");
});
