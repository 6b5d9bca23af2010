// Menu that opens at a frame.

import { sourceLocation, type ProfileTree } from "../profile/profile_tree";
import type { AppStore } from "../state/app_store";
import { copyText } from "../widgets/clipboard";
import type { MenuItem } from "../widgets/context_menu";

/** Items of the menu for `node`. A node that is no function has no items about its stacks. */
export function frameMenu(
  tree: ProfileTree,
  node: number,
  store: AppStore,
  zoomTo: (node: number) => void,
): MenuItem[] {
  const name = tree.name[node];
  const text = tree.names[name];
  const frame = tree.frames[name] ?? {};
  const location = sourceLocation(frame);
  const binary = frame.binary ?? "";
  const items: MenuItem[] = [
    { label: "Zoom", hint: "Enter", act: () => zoomTo(node) },
    { label: "Copy name", act: () => void copyText(text) },
  ];
  if (location !== "") items.push({ label: "Copy file and line", act: () => void copyText(location) });
  if (binary !== "") items.push({ label: "Copy binary", act: () => void copyText(binary) });
  if (name !== tree.name[0] && text !== "(other)") {
    items.push({
      label: "Show only stacks with this function",
      act: () => store.addMatcher({ label: "stack_function", operator: "=", value: text }),
    });
    items.push({
      label: "Hide stacks with this function",
      act: () => store.addMatcher({ label: "stack_function", operator: "!=", value: text }),
    });
  }
  return items;
}
