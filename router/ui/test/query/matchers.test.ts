import { expect, test } from "vitest";
import {
  apiSelector,
  parseSelector,
  printMatchers,
  SelectorError,
  withMatcher,
  withoutMatcher,
  type Matcher,
} from "../../src/query/matchers";

test.each([
  ["{}", []],
  ["", []],
  ['{service_name="api"}', [["service_name", "=", "api"]]],
  [
    '{ service_name = "api" , region=~"eu.*", }',
    [
      ["service_name", "=", "api"],
      ["region", "=~", "eu.*"],
    ],
  ],
  [
    "{a!=`b\\d`,c!~'d'}",
    [
      ["a", "!=", "b\\d"],
      ["c", "!~", "d"],
    ],
  ],
  ['service_name="api"', [["service_name", "=", "api"]]],
  ['{f="operator\\"\\\\\\n\\t"}', [["f", "=", 'operator"\\\n\t']]],
  ['{f="a,b}c{"}', [["f", "=", "a,b}c{"]]],
])("the selector %s is read", (text, expected) => {
  expect(parseSelector(text).matchers.map((m) => [m.label, m.operator, m.value])).toEqual(expected);
});

test("a metric name is separate from the matchers", () => {
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
  ['{a="b"} x', 8, /remove the text after/],
  ['{="b"}', 1, /label name/],
  ['{a="\\q"}', 4, /not an escape/],
  ["rate(x)", 4, /\{label="value"\}/],
])("the selector %s is refused at offset %i", (text, at, message) => {
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

test("a printed selector reads back, whatever its value contains", () => {
  for (const value of [
    "",
    "plain",
    'quo"te',
    "back\\slash",
    "new\nline",
    "<script>alert(1)</script>",
    "ünï{}=,",
    "\t\r",
  ]) {
    const matchers: Matcher[] = [{ label: "x", operator: "!~", value }];
    expect(parseSelector(printMatchers(matchers)).matchers).toEqual(matchers);
  }
});

test("the profile type is one more matcher", () => {
  expect(apiSelector("a:b/c:d:e:f", [{ label: "s", operator: "=", value: "x" }])).toBe(
    '{__profile_type__="a:b/c:d:e:f", s="x"}',
  );
});

test("a new value replaces that of a series label, but not of a stack label", () => {
  const start: Matcher[] = [{ label: "service_name", operator: "=", value: "a" }];
  expect(withMatcher(start, { label: "service_name", operator: "=", value: "b" })).toEqual([
    { label: "service_name", operator: "=", value: "b" },
  ]);
  expect(withMatcher(start, start[0])).toEqual(start);
  const stack: Matcher[] = [{ label: "stack_function", operator: "=", value: "f" }];
  expect(withMatcher(stack, { label: "stack_function", operator: "=", value: "g" })).toHaveLength(2);
  expect(withMatcher(start, { label: "service_name", operator: "!=", value: "z" })).toHaveLength(2);
  expect(withoutMatcher(start, 0)).toEqual([]);
});
