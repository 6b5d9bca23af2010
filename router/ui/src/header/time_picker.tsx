// When: ranges that end now, or two local times.

import { createSignal, For, onCleanup, onMount, Show } from "solid-js";
import { usePage } from "../state/app_store";
import { clockText, offsetText, PRESETS, rangeLabel, secondsText, widened } from "../query/time_range";

export function TimePicker() {
  const page = usePage();
  const [open, setOpen] = createSignal(false);
  let opener!: HTMLButtonElement;

  function close(): void {
    setOpen(false);
    page.setHeld(false);
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
        title={`Time, local (${offsetText(page.timeWindow()?.end_s ?? 0)})`}
        onClick={() => {
          page.setHeld(!open());
          setOpen(!open());
        }}
      >
        {rangeLabel(page.range(), page.timeWindow())} <span aria-hidden="true">▾</span>
      </button>
      <Show when={open()}>
        <TimeForm onClose={close} />
      </Show>
    </div>
  );
}

function TimeForm(props: { onClose(): void }) {
  const page = usePage();
  const window = page.timeWindow() ?? { start_s: Date.now() / 1000 - 900, end_s: Date.now() / 1000 };
  const [from, setFrom] = createSignal(fieldText(window.start_s));
  const [to, setTo] = createSignal(fieldText(window.end_s));
  let form!: HTMLFormElement;
  const isWindow = (): boolean => new Date(from()).getTime() < new Date(to()).getTime();

  onMount(() => {
    form.querySelector("button")?.focus();
    const outside = (event: Event): void => {
      if (!form.parentElement?.contains(event.target as Node)) props.onClose();
    };
    addEventListener("pointerdown", outside, true);
    onCleanup(() => removeEventListener("pointerdown", outside, true));
  });

  function choose(range: { from: string; to: string }): void {
    page.navigate(range);
    props.onClose();
  }

  return (
    <form
      class="popover time-form"
      ref={form}
      role="dialog"
      aria-label="Time"
      onKeyDown={(event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        props.onClose();
      }}
      onSubmit={(event) => {
        event.preventDefault();
        if (isWindow()) choose({ from: secondsText(new Date(from()).getTime() / 1000), to: secondsText(new Date(to()).getTime() / 1000) });
      }}
    >
      <div class="time-presets">
        <For each={PRESETS}>
          {(preset) => (
            <button type="button" aria-pressed={page.state.to === "now" && page.state.from === preset.from} onClick={() => choose({ from: preset.from, to: "now" })}>
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
          after
          <input type="datetime-local" step="1" value={from()} onInput={(event) => setFrom(event.currentTarget.value)} />
        </label>
        <label>
          until
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

/** A time as a `datetime-local` field wants it. */
function fieldText(seconds: number): string {
  return clockText(seconds).replace(" ", "T");
}
