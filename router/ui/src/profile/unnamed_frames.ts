// Reasons why frames have no name, and why stacks are incomplete.
//
// A frame has the short code of its reason, and the index of the sentence that describes it. Frames with the same code
// and binary may have different sentences.

import type { Frame } from "./profile_tree";
import type { WireInteger } from "./wire_integer";

/** Frames of one binary that have no name, and the reason. */
export interface UnnamedFrames {
  /** Short code of the reason, which equals `reason` of the frames. */
  readonly reason: string;
  /** The reason as a sentence for the user. */
  readonly text: string;
  readonly binary?: string;
  readonly build_id?: string;
  /** Number of frames. */
  readonly frames: number;
  /** Value of the stacks that pass through any of the frames, in the profile type's unit. */
  readonly value: WireInteger;
}

/** Counts of the frames of a response, as the server sends them. */
export interface Symbolization {
  readonly frames: number;
  readonly named: number;
  readonly unnamed: readonly UnnamedFrames[];
}

/** Code of the reason at a frame that is no function, because the sender's unwinder stopped there. */
const UNWINDING_STOPPED = "unwinding_stopped";

/** Beginning of the sentence about a frame, by the code of its reason; "No name" for all other codes. */
const LABELS: Readonly<Record<string, string>> = {
  [UNWINDING_STOPPED]: "Incomplete stack",
  inlined_omitted: "Inlined calls missing",
};

/** Sentences that replace those of the server, because the web UI repeats the query by itself. */
const TEXTS: Readonly<Record<string, string>> = {
  converting: "the symbol table is being built, and the name appears automatically",
  inlined_omitted: "this file has so many that a response cannot have all of them: run the query again",
};

/** The reason as a sentence. */
export function reasonText({ reason, text }: Pick<UnnamedFrames, "reason" | "text">): string {
  return TEXTS[reason] ?? (text || reason);
}

/** The sentence about a frame with its beginning, such as "No name: ..."; "" for a frame with a name. */
export function reasonOf({ reason, unnamed: index }: Frame, unnamed: readonly UnnamedFrames[]): string {
  if (reason === undefined) return "";
  const text = index === undefined ? "" : (unnamed[index]?.text ?? "");
  return `${LABELS[reason] ?? "No name"}: ${reasonText({ reason, text })}`;
}

/**
 * Numbers of frames with and without names. Frames at which the unwinder stopped are no functions, and are counted
 * separately.
 */
export interface NameCounts {
  readonly frames: number;
  readonly named: number;
  readonly unnamed: readonly UnnamedFrames[];
  readonly stopped: readonly UnnamedFrames[];
}

export function nameCounts({ frames, named, unnamed }: Symbolization): NameCounts {
  const isStopped = ({ reason }: UnnamedFrames): boolean => reason === UNWINDING_STOPPED;
  const stopped = unnamed.filter(isStopped);
  const markers = stopped.reduce((sum, entry) => sum + entry.frames, 0);
  return { frames: frames - markers, named, unnamed: unnamed.filter((entry) => !isStopped(entry)), stopped };
}
