// Why a frame has no name: frames carry a short code, the answer has the sentence, once for each binary.

import type { UnnamedFrames } from "../api/flame_graph";
import type { Frame } from "./profile_tree";

/** The sentence for a frame; its code where the answer has none; empty for a frame with a name. */
export function whyNoName(frame: Frame, unnamed: readonly UnnamedFrames[]): string {
  if (frame.reason === undefined) return "";
  // Two binaries may have one code, and the sentence names what is wrong with one of them.
  const isOf = (entry: UnnamedFrames): boolean => entry.reason === frame.reason && (entry.binary ?? "") === (frame.binary ?? "");
  return unnamed.find(isOf)?.text ?? frame.reason;
}
