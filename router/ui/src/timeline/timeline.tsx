// How much, over time, stacked by a label of choice; dragging zooms in time.

import { createEffect, createMemo, createResource, createSignal, For, on, onCleanup, onMount, Show } from "solid-js";
import type uPlot from "uplot";
import { askLabels } from "../api/prometheus";
import { paint } from "../views/color_legend";
import type { ThemeName } from "../color/frame_color";
import { printable } from "../text/printable";
import { usePage } from "../state/app_store";
import { apiSelector } from "../query/matchers";
import { clockText, offsetText, secondsText } from "../query/time_range";
import { formatAxis, formatRate, formatValue, rateOf } from "../text/format";
import { settledCount, type Area } from "../profile/stacked_areas";
import { areaColor, makeChart } from "./timeline_chart";

/** Agents send every 5 s and a push takes a moment: younger points are not whole yet. */
const SETTLE_S = 10;

export function Timeline(props: { theme: ThemeName }) {
  const page = usePage();
  let host!: HTMLDivElement;
  let chart: uPlot | undefined;
  const [point, setPoint] = createSignal<number | null>(null);
  const answer = () => page.timeline.latest();

  function draw(): void {
    chart?.destroy();
    chart = undefined;
    setPoint(null);
    const shown = answer();
    if (shown === undefined || host.clientWidth === 0) return;
    const { stacked, window, step_s, measure, moving } = shown;
    const count = moving ? settledCount(stacked, Date.now() / 1000, SETTLE_S) : stacked.times_s.length;
    chart = makeChart(host, {
      stacked,
      count,
      step_s,
      start_s: window.start_s,
      end_s: window.end_s,
      theme: props.theme,
      formatAxis: (rate) => formatAxis(rate, measure),
      onDrag: (from, to) => {
        // To whole seconds, outwards: a link stays short and at least a second long.
        page.navigate({ from: secondsText(Math.floor(from)), to: secondsText(Math.max(Math.ceil(to), Math.floor(from) + 1)) });
      },
      onPoint: setPoint,
    });
  }

  onMount(() => {
    createEffect(on([answer, () => props.theme], draw));
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

  /** A new answer would replace the chart and lose the drag. */
  function holdWhileDragging(): void {
    page.setHeld(true);
    const over = new AbortController();
    const release = (): void => {
      over.abort();
      page.setHeld(false);
    };
    // A touch that becomes a scroll ends in a cancel and in no up.
    for (const end of ["pointerup", "pointercancel"]) addEventListener(end, release, { signal: over.signal });
  }

  /** The whole selection as one number. */
  const headline = createMemo(() => {
    const flame = page.flame.latest();
    if (flame === undefined) return { value: "–", note: "" };
    const { measure, question, total } = flame;
    const length_s = question.window.end_s - question.window.start_s;
    if (measure.gauge) return { value: formatValue(total, measure), note: "last in each series" };
    return { value: formatRate(rateOf(total, measure, length_s), measure), note: `mean; ${formatValue(total, measure)} in all` };
  });

  return (
    <section class="timeline" aria-label="Timeline" classList={{ stale: page.timeline.slow() }}>
      <div class="headline">
        <div class="headline-value">{headline().value}</div>
        <div class="muted">{headline().note}</div>
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

/** Which label stacks the timeline. */
function ByMenu() {
  const page = usePage();
  const question = () => {
    const window = page.timeWindow();
    return window === null || page.type() === "" ? null : { selector: apiSelector(page.type(), page.matchers() ?? []), window };
  };
  const [labels] = createResource(question, async ({ selector, window }) => {
    try {
      return await askLabels(selector, window, new AbortController().signal);
    } catch (_noLabels) {
      // The menu then has what is chosen; the failure itself shows in the notices.
      return [];
    }
  });
  const choices = createMemo(() => {
    const found = (labels.latest ?? []).filter((label) => label !== "__profile_type__");
    return [...new Set(["service_name", ...found, "thread_name", page.state.by])].filter((label) => label !== "").sort();
  });
  return (
    <label class="by">
      stacked by
      <select value={page.state.by} onChange={(event) => page.navigate({ by: event.currentTarget.value })}>
        <option value="" selected={page.state.by === ""}>
          nothing
        </option>
        <For each={choices()}>{(label) => <option value={label} selected={label === page.state.by}>{label}</option>}</For>
      </select>
    </label>
  );
}

/** The areas by name, with their mean or their value under the pointer; a click selects one. */
function AreaList(props: { point: number | null; theme: ThemeName }) {
  const page = usePage();
  const answer = () => page.timeline.latest();
  const value = (area: Area): number => (props.point === null ? area.mean : area.values[props.point]);
  const label = (area: Area): string => {
    if (area.name === null) return `${area.count} others`;
    if (area.name === "") return answer()?.by === "" ? "all" : `no ${answer()?.by}`;
    return printable(area.name).slice(0, 200);
  };
  return (
    <Show when={answer()}>
      {(shown) => (
        <ul class="areas">
          <For each={shown().stacked.areas}>
            {(area) => (
              <li>
                <button
                  type="button"
                  disabled={area.name === null || shown().by === ""}
                  title={area.name === null ? "" : `Only ${label(area)}`}
                  onClick={() => page.addMatcher({ label: shown().by, operator: "=", value: area.name ?? "" })}
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

/** The time under the pointer, with the offset of the zone. */
function PointTime(props: { point: number | null }) {
  const page = usePage();
  const text = (): string => {
    const shown = page.timeline.latest();
    if (shown === undefined || props.point === null) return "drag to zoom in time";
    const end_s = shown.stacked.times_s[props.point];
    return `${clockText(end_s - shown.step_s)} – ${clockText(end_s, end_s - shown.step_s)} ${offsetText(end_s)}`;
  };
  return <div class="point-time muted">{text()}</div>;
}
