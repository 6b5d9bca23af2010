import { expect, test } from "vitest";
import {
  applyCompletion,
  completionRange,
  otherMatchers,
  rankCandidates,
  stackLabelValues,
} from "../../src/query/completion";
import { quoted } from "../../src/query/matchers";
import { treeOf } from "../trees";

function rangeAt(marked: string): string {
  const cursor = marked.indexOf("|");
  const text = marked.replace("|", "");
  const range = completionRange(text, cursor);
  if (range === null) return "nothing";
  return range.kind === "name" ? `name ${range.typed}` : `value of ${range.label}: ${range.typed}`;
}

test.each([
  ["{|}", "name "],
  ["{|", "name "],
  ["{ser|}", "name ser"],
  ["{se|rvice}", "name se"],
  ['{service_name="|"}', "value of service_name: "],
  ['{service_name="ap|"}', "value of service_name: ap"],
  ['{service_name="ap|', "value of service_name: ap"],
  ["{service_name=|}", "value of service_name: "],
  ["{service_name=ap|}", "value of service_name: ap"],
  ['{service_name="api", |}', "name "],
  ['{service_name="api", re|', "name re"],
  ['{service_name="api", region=~"e|"}', "value of region: e"],
  ['{service_name="api"|}', "nothing"],
  ['{service_name|="api"}', "name service_name"],
  ['{service_name=|"api"}', "nothing"],
  ["|{}", "nothing"],
  ["{}|", "nothing"],
  ["ser|", "name ser"],
])("the cursor in %s is completed", (marked, expected) => {
  expect(rangeAt(marked)).toBe(expected);
});

test("a chosen name opens quotes, and a chosen value closes them", () => {
  const take = (marked: string, chosen: string): string => {
    const cursor = marked.indexOf("|");
    const text = marked.replace("|", "");
    const range = completionRange(text, cursor);
    if (range === null) throw new Error("nothing to complete");
    const taken = applyCompletion(text, range, chosen, quoted);
    return `${taken.text.slice(0, taken.cursor)}|${taken.text.slice(taken.cursor)}`;
  };
  expect(take("{|}", "region")).toBe('{region="|"}');
  expect(take('{region="|"}', "eu")).toBe('{region="eu"|}');
  expect(take('{re|="eu"}', "region")).toBe('{region|="eu"}');
  expect(take('{region="e|', 'a"b')).toBe('{region="a\\"b"|');
  expect(take('{a="x", region=e|, b="y"}', "eu")).toBe('{a="x", region="eu"|, b="y"}');
});

test("stack labels complete from the shown tree, the largest first", () => {
  const tree = treeOf(["total", 0, ["main", 1, ["light", 2], ["heavy", 9]]]);
  expect(stackLabelValues("stack_function", tree)).toEqual(["main", "heavy", "light"]);
  expect(stackLabelValues("leaf_file", tree)).toEqual([]);
  expect(stackLabelValues("service_name", tree)).toBe(null);
});

test("candidates that begin with the text come first", () => {
  expect(rankCandidates(["my_api", "API", "web", "api2"], "api")).toEqual(["API", "api2", "my_api"]);
});

test("only the other matchers restrict the candidates", () => {
  const others = (marked: string): string[] => {
    const cursor = marked.indexOf("|");
    const text = marked.replace("|", "");
    const range = completionRange(text, cursor);
    return range === null ? [] : otherMatchers(text, range).map((m) => m.label + m.operator + m.value);
  };
  expect(others('{a="1", b="|", c!~"3"}')).toEqual(["a=1", "c!~3"]);
  expect(others('{a="1", b|="2"}')).toEqual(["a=1"]);
  expect(others('{a="1", |')).toEqual(["a=1"]);
  expect(others('{a="\\q", b="|"}')).toEqual([]);
});
