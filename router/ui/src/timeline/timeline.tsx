// Chart of the selected value over time, stacked by a label. A drag selects a time range.

import { createEffect, createMemo, createSignal, on, onCleanup, onMount, Show } from "solid-js";
import type uPlot from "uplot";
import type { ThemeName } from "../color/palette";
import { completeCount } from "../profile/stacked_areas";
import { clockText, offsetText, secondsText } from "../query/time_range";
import { useStore } from "../state/app_store";
import { formatAxis, formatRate, formatValue, rateOf } from "../text/format";
import { printable } from "../text/printable";
import { AreaList } from "./area_list";
import { ByMenu } from "./by_menu";
import { makeChart } from "./timeline_chart";

/** Age in seconds below which points are incomplete: agents send every 5 s, and a push takes a moment. */
const DELIVERY_DELAY_S = 10;

export function Timeline(props: { theme: ThemeName }) {
  const store = useStore();
  let host!: HTMLDivElement;
  let chart: uPlot | undefined;
  const [point, setPoint] = createSignal<number | null>(null);
  const response = () => store.timeline.latest();

  function draw(): void {
    chart?.destroy();
    chart = undefined;
    setPoint(null);
    const shown = response();
    if (shown === undefined || host.clientWidth === 0) return;
    const { stacked, window, step_s, measure, moving } = shown;
    const count = moving ? completeCount(stacked, Date.now() / 1000, DELIVERY_DELAY_S) : stacked.times_s.length;
    chart = makeChart(host, {
      stacked,
      count,
      step_s,
      start_s: window.start_s,
      end_s: window.end_s,
      theme: props.theme,
      formatAxis: (rate) => formatAxis(rate, measure),
      onDrag: (from, to) => {
        // The ends are rounded outwards to whole seconds. So a link stays short, and the range has at least one second.
        const end_s = Math.max(Math.ceil(to), Math.floor(from) + 1);
        store.navigate({ from: secondsText(Math.floor(from)), to: secondsText(end_s) });
      },
      onPoint: setPoint,
    });
  }

  onMount(() => {
    createEffect(on([response, () => props.theme], draw));
    const observer = new ResizeObserver(() => {
      if (chart && Math.abs(chart.width - host.clientWidth) < 1) return;
      draw();
    });
    observer.observe(host);
    onCleanup(() => {
      observer.disconnect();
      chart?.destroy();
    });
  });

  /** Prevents new responses during a drag. They would replace the chart and so end the drag. */
  function holdWhileDragging(): void {
    const endHold = store.hold();
    const over = new AbortController();
    const release = (): void => {
      over.abort();
      endHold();
    };
    // A touch that becomes a scroll ends with "pointercancel" and without "pointerup".
    for (const end of ["pointerup", "pointercancel"]) addEventListener(end, release, { signal: over.signal });
  }

  /** The selected value as one number. */
  const headline = createMemo(() => {
    const flame = store.flame.latest();
    if (flame === undefined) return { value: "–", note: "" };
    const { measure, query, total } = flame;
    const length_s = query.window.end_s - query.window.start_s;
    if (measure.gauge) return { value: formatValue(total, measure), note: "last value of each series" };
    const rate = formatRate(rateOf(total, measure, length_s), measure);
    return { value: rate, note: `mean; ${formatValue(total, measure)} in total` };
  });

  return (
    <section class="timeline" aria-label="Timeline" classList={{ stale: store.timeline.slow() }}>
      <div class="headline">
        <div class="headline-value">{headline().value}</div>
        <div class="muted">{headline().note}</div>
        <Show when={(response()?.warnings.length ?? 0) > 0}>
          <div class="warning" title={response()?.warnings.map(printable).join("\n")}>
            incomplete: see the warnings
          </div>
        </Show>
      </div>
      <div class="timeline-chart" ref={host} onPointerDown={holdWhileDragging} />
      <div class="timeline-side">
        <ByMenu />
        <AreaList point={point()} theme={props.theme} />
        <PointTime point={point()} />
      </div>
    </section>
  );
}

/** The time under the pointer, with the offset of the time zone. */
function PointTime(props: { point: number | null }) {
  const store = useStore();
  const text = (): string => {
    const shown = store.timeline.latest();
    if (shown === undefined || props.point === null) return "drag to zoom in time";
    const end_s = shown.stacked.times_s[props.point];
    const start_s = end_s - shown.step_s;
    return `${clockText(start_s)} – ${clockText(end_s, start_s)} ${offsetText(end_s)}`;
  };
  return <div class="point-time muted">{text()}</div>;
}
