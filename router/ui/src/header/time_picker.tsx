// Menu of the time range: a range that ends now, or two local times.

import { createSignal, For, onCleanup, onMount, Show } from "solid-js";
import { useStore } from "../state/app_store";
import { clockText, offsetText, PRESETS, rangeLabel, secondsText, widened } from "../query/time_range";

export function TimePicker() {
  const store = useStore();
  const [open, setOpen] = createSignal(false);
  let opener!: HTMLButtonElement;

  function close(): void {
    setOpen(false);
    opener.focus();
  }

  return (
    <div class="time">
      <button
        type="button"
        ref={opener}
        class="control"
        aria-haspopup="dialog"
        aria-expanded={open()}
        title={`Time range, in local time (${offsetText(store.timeWindow()?.end_s ?? 0)})`}
        onClick={() => setOpen(!open())}
      >
        {rangeLabel(store.range(), store.timeWindow())} <span aria-hidden="true">▾</span>
      </button>
      <Show when={open()}>
        <TimeForm onClose={close} />
      </Show>
    </div>
  );
}

function TimeForm(props: { onClose(): void }) {
  const store = useStore();
  const window = store.timeWindow() ?? { start_s: Date.now() / 1000 - 900, end_s: Date.now() / 1000 };
  const [from, setFrom] = createSignal(fieldText(window.start_s));
  const [to, setTo] = createSignal(fieldText(window.end_s));
  let form!: HTMLFormElement;
  const isWindow = (): boolean => new Date(from()).getTime() < new Date(to()).getTime();

  onMount(() => {
    form.querySelector("button")?.focus();
    onCleanup(store.hold());
    const outside = (event: Event): void => {
      if (!form.parentElement?.contains(event.target as Node)) props.onClose();
    };
    addEventListener("pointerdown", outside, true);
    onCleanup(() => removeEventListener("pointerdown", outside, true));
  });

  function choose(range: { from: string; to: string }): void {
    store.navigate(range);
    props.onClose();
  }

  return (
    <form
      class="popover time-form"
      ref={form}
      role="dialog"
      aria-label="Time range"
      onKeyDown={(event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        props.onClose();
      }}
      onSubmit={(event) => {
        event.preventDefault();
        if (isWindow()) choose({ from: unixText(from()), to: unixText(to()) });
      }}
    >
      <div class="time-presets">
        <For each={PRESETS}>
          {(preset) => (
            <button
              type="button"
              aria-pressed={store.state.to === "now" && store.state.from === preset.from}
              onClick={() => choose({ from: preset.from, to: "now" })}
            >
              {preset.label}
            </button>
          )}
        </For>
        <button
          type="button"
          onClick={() => {
            const wide = widened(window, Date.now() / 1000);
            choose({ from: secondsText(wide.start_s), to: secondsText(wide.end_s) });
          }}
        >
          twice as long
        </button>
      </div>
      <div class="time-fields">
        <label>
          From
          <input
            type="datetime-local"
            step="1"
            value={from()}
            onInput={(event) => setFrom(event.currentTarget.value)}
          />
        </label>
        <label>
          To
          <input type="datetime-local" step="1" value={to()} onInput={(event) => setTo(event.currentTarget.value)} />
        </label>
        <p class="muted">local time, {offsetText(window.end_s)}</p>
        <button type="submit" class="control" disabled={!isWindow()}>
          Show
        </button>
      </div>
    </form>
  );
}

/** Converts the time in a field to Unix seconds. */
function unixText(field: string): string {
  return secondsText(new Date(field).getTime() / 1000);
}

/** Converts a time to the format of a `datetime-local` field. */
function fieldText(seconds: number): string {
  return clockText(seconds).replace(" ", "T");
}
