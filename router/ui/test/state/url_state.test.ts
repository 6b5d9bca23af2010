import { expect, test } from "vitest";
import { DEFAULT_STATE, readState, writeState, type UrlState } from "../../src/state/url_state";

test("every field of the state can be read back from the address", () => {
  const full: UrlState = {
    type: "memory:inuse_space:bytes:space:bytes",
    query: '{service_name="a&b=c", f=~"<script>.*"}',
    from: "1700000000.5",
    to: "1700000900",
    by: "",
    view: "flame",
    search: "^json\\.(de|en)code#+ %",
    pick: "operator new[]",
    zoom: "abc-def",
    flip: true,
    fold: true,
    sort: "name",
    descending: false,
    live: false,
  };
  expect(readState(writeState(full))).toEqual(full);
  for (const key of Object.keys(full) as Array<keyof UrlState>) {
    expect(full[key], `the test leaves ${key} at its default`).not.toBe(DEFAULT_STATE[key]);
    // The two ends of the time range have a meaning only together.
    const ends = key === "from" || key === "to" ? { from: full.from, to: full.to } : {};
    const one = { ...DEFAULT_STATE, [key]: full[key], ...ends };
    expect(readState(writeState(one))).toEqual(one);
  }
});

test("the default state has an empty address, malformed values are defaults", () => {
  expect(writeState(DEFAULT_STATE)).toBe("");
  expect(readState("?view=rubbish&sort=7&flip=maybe&unknown=1&from=yesterday&to=now")).toEqual(DEFAULT_STATE);
});
