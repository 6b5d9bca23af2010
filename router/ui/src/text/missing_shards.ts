// The shards that are missing from a partial response, as text.

import type { Shards } from "../api/client";

/** Largest number of missing shards that the text names. */
const LISTED_MAX = 8;

/** Names the first shards that did not answer, such as " (missing: 2, 5)"; "" if none is known. */
export function missingShards({ missing = [] }: Shards): string {
  if (missing.length === 0) return "";
  const more = missing.length > LISTED_MAX ? ` and ${missing.length - LISTED_MAX} more` : "";
  const listed = missing.slice(0, LISTED_MAX).map(({ shard }) => shard);
  return ` (missing: ${listed.join(", ")}${more})`;
}
