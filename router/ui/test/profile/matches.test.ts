import { expect, test } from "vitest";
import { compileSearch, findMatches } from "../../src/profile/matches";
import { treeOf } from "../trees";

const TREE = treeOf([
  "total",
  0,
  ["main", 5, ["json.decode", 10, ["json.number", 20], ["alloc", 5, ["json.grow", 7]]], ["sql", 3]],
  ["json.decode", 50],
]);

test("a stack with several matches counts once", () => {
  const matches = findMatches(TREE, (name) => compileSearch("^json").test(name));
  expect(matches.value).toBe(10 + 20 + 5 + 7 + 50);
  expect(matches.count).toBe(3);
});

test("the root never matches, so that no share exceeds 100 per cent", () => {
  expect(findMatches(TREE, () => true).value).toBe(100);
  expect(findMatches(TREE, (name) => name === "total").count).toBe(0);
});

test("a search without matches has the value 0", () => {
  expect(findMatches(TREE, (name) => compileSearch("nothing").test(name))).toMatchObject({ value: 0, count: 0 });
});

test("the two ends of a range show whether it has matches", () => {
  const matches = findMatches(TREE, (name) => name === "json.decode");
  const [from, to] = [TREE.levelFrom[1], TREE.levelFrom[2]];
  expect(matches.before[to] - matches.before[from]).toBe(1);
});

test("a search is a regular expression, or literal text if malformed", () => {
  expect(compileSearch("de.ode").test("json.DECODE")).toBe(true);
  expect(compileSearch("operator()(").test("x::operator()(int)")).toBe(true);
  expect(compileSearch("[").test("a[0]")).toBe(true);
});
