// Tooltip of the frame under the pointer, or of several frames that are merged there.
//
// `data-self` and `data-total` hold the exact integers of the response, in its unit.

import { createEffect, createMemo, For, Show } from "solid-js";
import type { FlameResponse } from "../../api/flame_graph";
import { formatRate, formatValue, perCent, rateOf } from "../../text/format";
import { classLabel, colorClass } from "../../color/frame_color";
import { printable, shortened } from "../../text/printable";
import { exactValuesOf, sourceLocation } from "../../profile/profile_tree";
import { reasonOf } from "../../profile/unnamed_frames";

/** The frames under the pointer, `levelNodes[first .. first + count)`, and the pointer's position in the window. */
export interface Pointed {
  readonly first: number;
  readonly count: number;
  readonly x: number;
  readonly y: number;
}

export function FrameTooltip(props: { response: FlameResponse; pointed: Pointed }) {
  let element!: HTMLDivElement;
  createEffect(() => {
    const { x, y } = props.pointed;
    const { width, height } = element.getBoundingClientRect();
    const margin = 12;
    const left = Math.min(x + margin, innerWidth - width - margin);
    // The tooltip is above the pointer if it does not fit below.
    const top = y + margin + height > innerHeight ? y - height - margin : y + margin;
    element.style.setProperty("transform", `translate(${Math.max(left, margin)}px, ${Math.max(top, margin)}px)`);
  });
  return (
    <div class="tooltip" role="tooltip" ref={element}>
      <Show
        when={props.pointed.count === 1}
        fallback={<MergedFacts response={props.response} pointed={props.pointed} />}
      >
        <FrameFacts response={props.response} node={props.response.tree.levelNodes[props.pointed.first]} />
      </Show>
    </div>
  );
}

function FrameFacts(props: { response: FlameResponse; node: number }) {
  const tree = () => props.response.tree;
  const frame = () => tree().frames[tree().name[props.node]] ?? {};
  const exact = () => exactValuesOf(tree(), props.node);
  const parentTotal = () => tree().total[Math.max(tree().parent[props.node], 0)];
  const reason = createMemo(() => reasonOf(frame(), props.response.symbolization.unnamed));
  const location = () => sourceLocation(frame());
  /** Language or kind of the code, and its binary. */
  const origin = () => {
    const { type, binary } = frame();
    const parts = [type && classLabel(colorClass(frame())), binary && shortened(printable(binary))];
    return parts.filter(Boolean).join(" · ");
  };
  const rows = () => [
    { label: "self", value: tree().self[props.node] },
    { label: "total", value: tree().total[props.node] },
  ];
  return (
    <div data-self={exact().self} data-total={exact().total} class="frame-facts">
      <div class="tooltip-name">{shortened(printable(tree().names[tree().name[props.node]]))}</div>
      <Show when={location()}>
        <div class="tooltip-origin">{shortened(printable(location()))}</div>
      </Show>
      <Show when={origin()}>
        <div class="tooltip-origin">{origin()}</div>
      </Show>
      <table class="tooltip-values">
        <thead>
          <tr>
            <th />
            <th>{unitTitle(props.response)}</th>
            <Show when={!props.response.measure.gauge}>
              <th>mean rate</th>
            </Show>
            <th>of all</th>
            <th>of parent</th>
          </tr>
        </thead>
        <tbody>
          <For each={rows()}>
            {(row) => (
              <tr>
                <th>{row.label}</th>
                <td>{formatValue(row.value, props.response.measure)}</td>
                <Show when={!props.response.measure.gauge}>
                  <td>{meanRate(props.response, row.value)}</td>
                </Show>
                <td>{perCent(row.value, tree().total[0])}</td>
                <td>{perCent(row.value, parentTotal())}</td>
              </tr>
            )}
          </For>
        </tbody>
      </table>
      <Show when={reason()}>
        <div class="tooltip-reason">{printable(reason())}</div>
      </Show>
    </div>
  );
}

function MergedFacts(props: { response: FlameResponse; pointed: Pointed }) {
  const sum = () => {
    const { levelNodes, total } = props.response.tree;
    let value = 0;
    for (let at = props.pointed.first; at < props.pointed.first + props.pointed.count; at++)
      value += total[levelNodes[at]];
    return value;
  };
  return (
    <div class="frame-facts">
      <div class="tooltip-name">{props.pointed.count.toLocaleString("en")} frames that are too narrow to draw</div>
      <div class="tooltip-origin">
        total {formatValue(sum(), props.response.measure)}, {perCent(sum(), props.response.tree.total[0])} of all; click
        to zoom in
      </div>
    </div>
  );
}

function unitTitle(response: FlameResponse): string {
  return response.measure.cpu ? "CPU time" : response.measure.sampleType.replaceAll("_", " ");
}

/** The value as a mean rate over the time window, in cores for CPU time. */
function meanRate(response: FlameResponse, value: number): string {
  const { start_s, end_s } = response.query.window;
  return formatRate(rateOf(value, response.measure, end_s - start_s), response.measure);
}
