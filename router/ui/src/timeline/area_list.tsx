// Legend of the timeline: each area with its mean, or its value under the pointer. A click selects the area.

import { For, Show } from "solid-js";
import type { ThemeName } from "../color/palette";
import { paint } from "../color/swatch";
import type { Area } from "../profile/stacked_areas";
import { useStore } from "../state/app_store";
import { formatRate } from "../text/format";
import { printable } from "../text/printable";
import { areaColor } from "./timeline_chart";

export function AreaList(props: { point: number | null; theme: ThemeName }) {
  const store = useStore();
  const response = () => store.timeline.latest();
  const value = (area: Area): number => (props.point === null ? area.mean : area.values[props.point]);
  const label = (area: Area): string => {
    if (area.name === null) return `${area.count} others`;
    if (area.name === "") return response()?.by === "" ? "all" : `no ${response()?.by}`;
    return printable(area.name).slice(0, 200);
  };
  return (
    <Show when={response()}>
      {(shown) => (
        <ul class="areas">
          <For each={shown().stacked.areas}>
            {(area) => (
              <li>
                <button
                  type="button"
                  disabled={area.name === null || shown().by === ""}
                  title={area.name === null ? "" : `Show only ${label(area)}`}
                  onClick={() => store.addMatcher({ label: shown().by, operator: "=", value: area.name ?? "" })}
                >
                  <i class="swatch" ref={(swatch) => paint(swatch, () => areaColor(area.hue, props.theme))} />
                  <span class="area-name">{label(area)}</span>
                  <span class="area-value">{formatRate(value(area), shown().measure)}</span>
                </button>
              </li>
            )}
          </For>
        </ul>
      )}
    </Show>
  );
}
