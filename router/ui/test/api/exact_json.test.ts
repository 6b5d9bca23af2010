import { expect, test } from "vitest";
import { parseExactJson } from "../../src/api/exact_json";
import { wireNumber } from "../../src/profile/wire_integer";

test("integers beyond 2^53 keep their digits", () => {
  const parsed = parseExactJson(
    '{"total":9007199254740993,"nodes":[[-1,0,0,170141183460469231731687303715884105727]]}',
  );
  expect(parsed).toEqual({ total: "9007199254740993", nodes: [[-1, 0, 0, "170141183460469231731687303715884105727"]] });
});

test("integers that a number holds stay numbers", () => {
  expect(parseExactJson("[1,9007199254740991,-9007199254740991,1000000000000000]")).toEqual([
    1, 9007199254740991, -9007199254740991, 1e15,
  ]);
  expect(parseExactJson("[-9007199254740993]")).toEqual(["-9007199254740993"]);
});

test("digits in strings stay, also after escaped quotes and backslashes", () => {
  const names = ["h12345678901234567890", 'say \\" 99999999999999999999', "ends with \\\\"];
  const text = `{"names":["${names.join('","')}"],"n":99999999999999999999}`;
  expect(parseExactJson(text)).toEqual({
    names: ["h12345678901234567890", 'say " 99999999999999999999', "ends with \\"],
    n: "99999999999999999999",
  });
});

test("fractions and exponents are numbers, not integers", () => {
  expect(parseExactJson("[1.12345678901234567890, 12345678901234567890.5, 12345678901234567890e3]")).toEqual([
    1.1234567890123456789, 12345678901234567890.5, 12345678901234567890e3,
  ]);
});

test("malformed JSON throws with and without long integers", () => {
  expect(() => parseExactJson("{")).toThrow(SyntaxError);
  expect(() => parseExactJson("[12345678901234567890")).toThrow(SyntaxError);
});

test("a wire integer becomes the nearest number", () => {
  expect(wireNumber("9007199254740993")).toBe(9007199254740992);
  expect(wireNumber(7)).toBe(7);
});
