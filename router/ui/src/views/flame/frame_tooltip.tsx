// What is known of the frame under the pointer, or of the frames merged there.
//
// `data-self` and `data-total` carry the exact integers of the answer, in its unit.

import { createEffect, createMemo, For, Show } from "solid-js";
import type { FlameAnswer } from "../../api/flame_graph";
import { formatRate, formatValue, perCent, rateOf } from "../../text/format";
import { classLabel, colorClass } from "../../color/frame_color";
import { printable, shortened } from "../../text/printable";
import { whyNoName } from "../../profile/unnamed_frames";
import { exactValues } from "../../profile/profile_tree";

/** Frames `levelNodes[first .. first + count)`, pointed at from a point of the window. */
export interface Pointed {
  readonly first: number;
  readonly count: number;
  readonly x: number;
  readonly y: number;
}

export function FrameTooltip(props: { answer: FlameAnswer; pointed: Pointed }) {
  let element!: HTMLDivElement;
  createEffect(() => {
    const { x, y } = props.pointed;
    const { width, height } = element.getBoundingClientRect();
    const margin = 12;
    const left = Math.min(x + margin, innerWidth - width - margin);
    // Above the pointer where there is no room below.
    const top = y + margin + height > innerHeight ? y - height - margin : y + margin;
    element.style.setProperty("transform", `translate(${Math.max(left, margin)}px, ${Math.max(top, margin)}px)`);
  });
  return (
    <div class="tooltip" role="tooltip" ref={element}>
      <Show when={props.pointed.count === 1} fallback={<MergedFacts answer={props.answer} pointed={props.pointed} />}>
        <FrameFacts answer={props.answer} node={props.answer.tree.levelNodes[props.pointed.first]} />
      </Show>
    </div>
  );
}

function FrameFacts(props: { answer: FlameAnswer; node: number }) {
  const tree = () => props.answer.tree;
  const frame = () => tree().frames[tree().name[props.node]] ?? {};
  const exact = () => exactValues(tree(), props.node);
  const parentTotal = () => tree().total[Math.max(tree().parent[props.node], 0)];
  const reason = createMemo(() => whyNoName(frame(), props.answer.symbolization.unnamed));
  const place = () => {
    const { file, line } = frame();
    return file === undefined ? "" : line === undefined ? file : `${file}:${line}`;
  };
  /** Language or kind of code, and the binary it is in. */
  const origin = () => [frame().type && classLabel(colorClass(frame())), frame().binary && shortened(printable(frame().binary ?? ""))].filter(Boolean).join(" · ");
  const rows = () => [
    { label: "self", value: tree().self[props.node] },
    { label: "total", value: tree().total[props.node] },
  ];
  return (
    <div data-self={exact().self} data-total={exact().total} class="frame-facts">
      <div class="tooltip-name">{shortened(printable(tree().names[tree().name[props.node]]))}</div>
      <Show when={place()}>
        <div class="tooltip-place">{shortened(printable(place()))}</div>
      </Show>
      <Show when={origin()}>
        <div class="tooltip-place">{origin()}</div>
      </Show>
      <table class="tooltip-values">
        <thead>
          <tr>
            <th />
            <th>{unitTitle(props.answer)}</th>
            <Show when={!props.answer.measure.gauge}>
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
                <td>{formatValue(row.value, props.answer.measure)}</td>
                <Show when={!props.answer.measure.gauge}>
                  <td>{meanRate(props.answer, row.value)}</td>
                </Show>
                <td>{perCent(row.value, tree().total[0])}</td>
                <td>{perCent(row.value, parentTotal())}</td>
              </tr>
            )}
          </For>
        </tbody>
      </table>
      <Show when={reason()}>
        <div class="tooltip-reason">No name: {reason()}</div>
      </Show>
    </div>
  );
}

function MergedFacts(props: { answer: FlameAnswer; pointed: Pointed }) {
  const sum = () => {
    const { levelNodes, total } = props.answer.tree;
    let value = 0;
    for (let at = props.pointed.first; at < props.pointed.first + props.pointed.count; at++) value += total[levelNodes[at]];
    return value;
  };
  return (
    <div class="frame-facts">
      <div class="tooltip-name">{props.pointed.count.toLocaleString("en")} frames, each too narrow to draw alone</div>
      <div class="tooltip-place">
        together {formatValue(sum(), props.answer.measure)}, {perCent(sum(), props.answer.tree.total[0])} of all; click to zoom in
      </div>
    </div>
  );
}

function unitTitle(answer: FlameAnswer): string {
  return answer.measure.cpu ? "CPU time" : answer.measure.sampleType.replaceAll("_", " ");
}

/** The value as a rate over the window: cores for processor time. */
export function meanRate(answer: FlameAnswer, value: number): string {
  const { start_s, end_s } = answer.question.window;
  return formatRate(rateOf(value, answer.measure, end_s - start_s), answer.measure);
}
