// Stores the stacks of a test: in the varve at VARVE_URL, or in a fake server if the variable is not set.

import { afterAll } from "vitest";
import { CPU_TYPE, startFixture, type Fixture } from "./fixture/server";
import type { FixtureStack } from "./fixture/stacks";
import { pprofOf } from "./pprof_writer";

/** Address of a running varve; undefined if VARVE_URL is not set. */
export const VARVE_URL = process.env.VARVE_URL?.replace(/\/$/, "");

const fixtures: Fixture[] = [];
afterAll(async () => {
  await Promise.all(fixtures.splice(0).map((fixture) => fixture.close()));
});

export interface Stored {
  /** Address that shows only these stacks. `more` is further state to append, such as `&view=flame`. */
  address(more?: string): string;
  readonly service: string;
}

let count = 0;

/** Stores stacks under a new service. */
export async function stored(stacks: readonly FixtureStack[]): Promise<Stored> {
  const service = `browser-${process.pid}-${Date.now()}-${++count}`;
  const own = stacks.map((stack) => ({ ...stack, service }));
  let base: string;
  if (VARVE_URL === undefined) {
    const fixture = await startFixture({ stacks: own });
    fixtures.push(fixture);
    base = fixture.url;
  } else {
    base = VARVE_URL;
    await push(base, service, pprofOf(own, Date.now() / 1000 - 2));
  }
  return {
    service,
    address: (more = "") => `${base}/?query=${encodeURIComponent(`{service_name="${service}"}`)}&live=0${more}`,
  };
}

/** Total CPU time of the stacks that the matchers select, over the last 15 minutes, in nanoseconds. */
export async function totalOf(base: string, matchers: string): Promise<number> {
  const now_s = Date.now() / 1000;
  const params = new URLSearchParams({
    query: `{__profile_type__="${CPU_TYPE}", ${matchers}}`,
    start: String(now_s - 900),
    end: String(now_s),
    max_nodes: "1",
  });
  const response = await fetch(`${base}/api/v1/flamegraph?${params}`);
  if (!response.ok) throw new Error(`flame graph of ${matchers}: ${response.status} ${await response.text()}`);
  return Number(((await response.json()) as { total: number | string }).total);
}

/** Pushes a pprof file to a varve. Throws an error with the server's response if the push is refused. */
export async function push(base: string, service: string, body: Uint8Array): Promise<void> {
  const response = await fetch(`${base}/api/v1/push?service_name=${encodeURIComponent(service)}`, {
    method: "POST",
    body: body as unknown as BodyInit,
  });
  if (!response.ok) throw new Error(`push of ${service}: ${response.status} ${await response.text()}`);
}
