// Where a test's stacks are: pushed to the varve at VARVE_URL, or in the fixture where there is none.

import { afterAll } from "vitest";
import { startFixture, type Fixture } from "./fixture/server";
import type { FixtureStack } from "./fixture/stacks";
import { pprofOf } from "./pprof_writer";

/** Address of a running varve, if the harness gave one. */
export const VARVE_URL = process.env.VARVE_URL?.replace(/\/$/, "");

const fixtures: Fixture[] = [];
afterAll(async () => {
  await Promise.all(fixtures.splice(0).map((fixture) => fixture.close()));
});

export interface Stored {
  /** Page that shows only these stacks, with more of the state to append (`&view=flame`). */
  address(more?: string): string;
  readonly service: string;
}

let count = 0;

/** Stores stacks under a service of their own. */
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

/** Pushes a pprof file to a varve; throws with the server's answer if it refuses. */
export async function push(base: string, service: string, body: Uint8Array): Promise<void> {
  const response = await fetch(`${base}/api/v1/push?service_name=${encodeURIComponent(service)}`, {
    method: "POST",
    body: body as unknown as BodyInit,
  });
  if (!response.ok) throw new Error(`push of ${service}: ${response.status} ${await response.text()}`);
}
