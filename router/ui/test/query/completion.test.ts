import { expect, test } from "vitest";
import { applyCompletion, completionPlace, otherMatchers, rankCandidates, stackLabelValues } from "../../src/query/completion";
import { treeOf } from "../trees";
import { apiSelector, parseSelector, printMatchers, quoted, SelectorError, withMatcher, withoutMatcher, type Matcher } from "../../src/query/matchers";

test.each([
  ["{}", []],
  ["", []],
  ['{service_name="api"}', [["service_name", "=", "api"]]],
  ['{ service_name = "api" , region=~"eu.*", }', [["service_name", "=", "api"], ["region", "=~", "eu.*"]]],
  ["{a!=`b\\d`,c!~'d'}", [["a", "!=", "b\\d"], ["c", "!~", "d"]]],
  ['service_name="api"', [["service_name", "=", "api"]]],
  ['{f="operator\\"\\\\\\n\\t"}', [["f", "=", 'operator"\\\n\t']]],
  ['{f="a,b}c{"}', [["f", "=", "a,b}c{"]]],
])("reads %s", (text, expected) => {
  expect(parseSelector(text).matchers.map((m) => [m.label, m.operator, m.value])).toEqual(expected);
});

test("a metric name is kept apart", () => {
  expect(parseSelector('process_cpu:cpu:nanoseconds:cpu:nanoseconds{a="b"}')).toEqual({
    metric: "process_cpu:cpu:nanoseconds:cpu:nanoseconds",
    matchers: [{ label: "a", operator: "=", value: "b" }],
  });
  expect(parseSelector("process_cpu").metric).toBe("process_cpu");
});

test.each([
  ['{a="b"', 6, /close the brace/],
  ['{a="b}', 3, /quote is not closed/],
  ["{a}", 2, /one of = !=/],
  ["{a=b}", 3, /in quotes/],
  ['{a="b" c="d"}', 7, /comma/],
  ['{a="b"} x', 8, /nothing may follow/],
  ['{="b"}', 1, /label name/],
  ['{a="\\q"}', 4, /not an escape/],
  ["rate(x)", 4, /\{label="value"\}/],
])("refuses %s at %i", (text, at, message) => {
  let thrown: unknown;
  try {
    parseSelector(text);
  } catch (error) {
    thrown = error;
  }
  expect(thrown).toBeInstanceOf(SelectorError);
  expect((thrown as SelectorError).message).toMatch(message);
  expect((thrown as SelectorError).at).toBe(at);
});

test("what is printed reads back, whatever the value holds", () => {
  for (const value of ["", "plain", 'quo"te', "back\\slash", "new\nline", "<script>alert(1)</script>", "ünï{}=,", "\t\r"]) {
    const matchers: Matcher[] = [{ label: "x", operator: "!~", value }];
    expect(parseSelector(printMatchers(matchers)).matchers).toEqual(matchers);
  }
});

test("the profile type is one more matcher", () => {
  expect(apiSelector("a:b/c:d:e:f", [{ label: "s", operator: "=", value: "x" }])).toBe('{__profile_type__="a:b/c:d:e:f", s="x"}');
});

test("adding a value replaces the old one of a series label, and adds to those of a stack", () => {
  const start: Matcher[] = [{ label: "service_name", operator: "=", value: "a" }];
  expect(withMatcher(start, { label: "service_name", operator: "=", value: "b" })).toEqual([{ label: "service_name", operator: "=", value: "b" }]);
  expect(withMatcher(start, start[0])).toEqual(start);
  const stack: Matcher[] = [{ label: "stack_function", operator: "=", value: "f" }];
  expect(withMatcher(stack, { label: "stack_function", operator: "=", value: "g" })).toHaveLength(2);
  expect(withMatcher(start, { label: "service_name", operator: "!=", value: "z" })).toHaveLength(2);
  expect(withoutMatcher(start, 0)).toEqual([]);
});

function placeAt(marked: string): string {
  const cursor = marked.indexOf("|");
  const text = marked.replace("|", "");
  const place = completionPlace(text, cursor);
  if (place === null) return "nothing";
  return place.kind === "name" ? `name ${place.typed}` : `value of ${place.label}: ${place.typed}`;
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
])("completes at %s", (marked, expected) => {
  expect(placeAt(marked)).toBe(expected);
});

test("taking a name opens its value, taking a value closes it", () => {
  const take = (marked: string, chosen: string): string => {
    const cursor = marked.indexOf("|");
    const text = marked.replace("|", "");
    const place = completionPlace(text, cursor);
    if (place === null) throw new Error("nothing to complete");
    const taken = applyCompletion(text, place, chosen, quoted);
    return `${taken.text.slice(0, taken.cursor)}|${taken.text.slice(taken.cursor)}`;
  };
  expect(take("{|}", "region")).toBe('{region="|"}');
  expect(take('{region="|"}', "eu")).toBe('{region="eu"|}');
  expect(take('{re|="eu"}', "region")).toBe('{region|="eu"}');
  expect(take('{region="e|', 'a"b')).toBe('{region="a\\"b"|');
  expect(take('{a="x", region=e|, b="y"}', "eu")).toBe('{a="x", region="eu"|, b="y"}');
});

test("stack labels complete from the picture, the heaviest first", () => {
  const tree = treeOf(["total", 0, ["main", 1, ["light", 2], ["heavy", 9]]]);
  expect(stackLabelValues("stack_function", tree)).toEqual(["main", "heavy", "light"]);
  expect(stackLabelValues("leaf_file", tree)).toEqual([]);
  expect(stackLabelValues("service_name", tree)).toBe(null);
});

test("candidates that begin with the text come first", () => {
  expect(rankCandidates(["my_api", "API", "web", "api2"], "api")).toEqual(["API", "api2", "my_api"]);
});

test("candidates are narrowed by the other matchers only", () => {
  const others = (marked: string): string[] => {
    const cursor = marked.indexOf("|");
    const text = marked.replace("|", "");
    const place = completionPlace(text, cursor);
    return place === null ? [] : otherMatchers(text, place).map((m) => m.label + m.operator + m.value);
  };
  expect(others('{a="1", b="|", c!~"3"}')).toEqual(["a=1", "c!~3"]);
  expect(others('{a="1", b|="2"}')).toEqual(["a=1"]);
  expect(others('{a="1", |')).toEqual(["a=1"]);
  expect(others('{a="\\q", b="|"}')).toEqual([]);
});
