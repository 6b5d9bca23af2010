// Keeps the zoom and the marked function when names arrive. Both are stored by name, so a new name would lose them.

import type { FlameResponse } from "../api/flame_graph";
import { pathTo, widestFrame } from "../profile/profile_tree";
import { findPath, frameOf } from "../profile/renamed_path";
import { nodeOfZoomKey, zoomKey } from "../profile/zoom_key";
import type { UrlState } from "./url_state";

type Position = Pick<UrlState, "zoom" | "pick">;

/** Changes of zoom and marked function when `next` replaces `before`; empty unless their frames have new names. */
export function renamedPosition(
  position: Position,
  before: Pick<FlameResponse, "tree" | "pendingFiles"> | undefined,
  next: Pick<FlameResponse, "tree">,
): Partial<Position> {
  if (before === undefined || before.pendingFiles.length === 0) return {};
  const { zoom, pick } = position;
  const [old, tree] = [before.tree, next.tree];
  const changes: { zoom?: string; pick?: string } = {};
  const isUnnamed = (node: number): boolean => frameOf(old, node).reason !== undefined;
  const zoomed = nodeOfZoomKey(old, zoom);
  if (zoomed > 0 && nodeOfZoomKey(tree, zoom) < 0 && pathTo(old, zoomed).some(isUnnamed)) {
    changes.zoom = zoomKey(tree, findPath(old, zoomed, tree).node);
  }
  const picked = pick === "" ? 0 : widestFrame(old, pick, 0);
  if (picked > 0 && isUnnamed(picked) && !tree.names.includes(pick)) {
    const { node, isWhole } = findPath(old, picked, tree);
    changes.pick = isWhole ? tree.names[tree.name[node]] : "";
  }
  return changes;
}
