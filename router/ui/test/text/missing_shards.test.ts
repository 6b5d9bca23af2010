import { expect, test } from "vitest";
import { missingShards } from "../../src/text/missing_shards";

const missing = (count: number) => Array.from({ length: count }, (_, i) => ({ shard: 2 * i + 1, reason: "why" }));

test("missing shards are named, and many are counted", () => {
  expect(missingShards({ asked: 4, answered: 4 })).toBe("");
  expect(missingShards({ asked: 4, answered: 2, missing: missing(2) })).toBe(" (missing: 1, 3)");
  expect(missingShards({ asked: 64, answered: 54, missing: missing(10) })).toBe(
    " (missing: 1, 3, 5, 7, 9, 11, 13, 15 and 2 more)",
  );
});
