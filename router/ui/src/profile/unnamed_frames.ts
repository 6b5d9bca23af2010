// Reasons of frames without a name, and of stacks that are incomplete.
//
// A frame has a short code, and the index of the sentence that describes it: frames may share a code and a binary,
// but not the sentence.

import type { Frame } from "./profile_tree";
import type { WireInteger } from "./wire_integer";

/** Frames of one binary that have no name, and the reason. */
export interface UnnamedFrames {
  /** Short code, as the frames carry it. */
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

/** Code of a frame that is no function: the sender's unwinder stopped there. */
const UNWINDING_STOPPED = "unwinding_stopped";

/** Beginning of the sentence about a frame, by the code of its reason. */
const LABELS: Readonly<Record<string, string>> = {
  [UNWINDING_STOPPED]: "Incomplete stack",
  inlined_omitted: "Inlined calls missing",
};

/** Sentences of the web UI, which repeats the query by itself, in place of the server's. */
const TEXTS: Readonly<Record<string, string>> = {
  converting: "the symbol table is being built, and the name appears automatically",
  inlined_omitted: "this file has so many that a response cannot have all of them: run the query again",
};

/** The reason as a sentence. */
export function reasonText({ reason, text }: Pick<UnnamedFrames, "reason" | "text">): string {
  return TEXTS[reason] ?? (text || reason);
}

/** The sentence for a frame, with its label; empty for a frame with a name. */
export function reasonOf({ reason, unnamed: index }: Frame, unnamed: readonly UnnamedFrames[]): string {
  if (reason === undefined) return "";
  const text = index === undefined ? "" : (unnamed[index]?.text ?? "");
  return `${LABELS[reason] ?? "No name"}: ${reasonText({ reason, text })}`;
}

/** Frames by whether they have names. Those at which the unwinder stopped are no functions, and count apart. */
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
