// What the colours mean, for the classes that are in the picture, each with its share of self.

import { createEffect, createMemo, For } from "solid-js";
import { perCent } from "../text/format";
import { classColor, classLabel, colorClass, type ThemeName } from "../color/frame_color";
import type { ProfileTree } from "../profile/profile_tree";

/** Classes shown; more would fill the line. */
const CLASSES_MAX = 6;

export function ColorLegend(props: { tree: ProfileTree; theme: ThemeName }) {
  const classes = createMemo(() => {
    const { tree } = props;
    const self = new Map<string, number>();
    for (let node = 1; node < tree.size; node++) {
      const key = colorClass(tree.frames[tree.name[node]]);
      self.set(key, (self.get(key) ?? 0) + tree.self[node]);
    }
    return [...self].sort((a, b) => b[1] - a[1]).slice(0, CLASSES_MAX);
  });
  return (
    <ul class="legend" aria-label="Colours: where the code comes from, share of self">
      <For each={classes()}>
        {([key, value]) => (
          <li>
            <i class="swatch" ref={(swatch) => paint(swatch, () => classColor(key, props.theme))} />
            {classLabel(key)} <b>{perCent(value, props.tree.total[0])}</b>
          </li>
        )}
      </For>
    </ul>
  );
}

/** Keeps an element's background at a colour; by the object model, as the content policy wants it. */
export function paint(element: HTMLElement, color: () => string): void {
  createEffect(() => element.style.setProperty("background", color()));
}
