// Legend of the colour classes in the flame graph, each with its share of the self values.

import { createMemo, For } from "solid-js";
import { perCent } from "../text/format";
import { classColor, classLabel, colorClass } from "../color/frame_color";
import type { ThemeName } from "../color/palette";
import { paint } from "../color/swatch";
import type { ProfileTree } from "../profile/profile_tree";

/** Largest number of classes that are shown. So many fit into one line. */
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
