// Frames without a name: frames carry a short code, and the response has one sentence per code and binary.

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
  /** Their self value, in the profile type's unit. */
  readonly value: WireInteger;
}

/** The sentence for a frame; its code where the response has no sentence; empty for a frame with a name. */
export function reasonOf(frame: Frame, unnamed: readonly UnnamedFrames[]): string {
  if (frame.reason === undefined) return "";
  // Two binaries may share a code, but each sentence describes one binary.
  const describes = (entry: UnnamedFrames): boolean =>
    entry.reason === frame.reason && (entry.binary ?? "") === (frame.binary ?? "");
  return unnamed.find(describes)?.text ?? frame.reason;
}
