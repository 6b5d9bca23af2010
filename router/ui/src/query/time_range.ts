// The time range of a query: two ends, each `now`, `now-15m` or Unix seconds.
//
// A range excludes its start and includes its end, as in the API.

export interface TimeRange {
  readonly from: string;
  readonly to: string;
}

/** A time range whose ends are known, in Unix seconds. */
export interface TimeWindow {
  readonly start_s: number;
  readonly end_s: number;
}

const UNIT_S: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400, w: 604_800 };
const UNIT_NAMES: Readonly<Record<string, string>> = { s: "second", m: "minute", h: "hour", d: "day", w: "week" };
const RELATIVE = /^now(?:-(\d{1,6})([smhdw]))?$/;

export const DEFAULT_RANGE: TimeRange = { from: "now-15m", to: "now" };

/** Time ranges in the menu. */
export const PRESETS: ReadonlyArray<{ readonly from: string; readonly label: string }> = [
  { from: "now-5m", label: "Last 5 minutes" },
  { from: "now-15m", label: "Last 15 minutes" },
  { from: "now-1h", label: "Last hour" },
  { from: "now-6h", label: "Last 6 hours" },
  { from: "now-24h", label: "Last 24 hours" },
  { from: "now-7d", label: "Last 7 days" },
  { from: "now-30d", label: "Last 30 days" },
];

/** Unix seconds of one end of a range; NaN if the text is malformed. */
export function resolveEnd(text: string, now_s: number): number {
  const relative = RELATIVE.exec(text);
  if (relative) return now_s - (relative[1] === undefined ? 0 : Number(relative[1]) * UNIT_S[relative[2]]);
  return /^\d{1,12}(\.\d{1,9})?$/.test(text) ? Number(text) : NaN;
}

/** The window of a range at the time `now_s`; null if an end is malformed or the range is empty. */
export function resolveRange(range: TimeRange, now_s: number): TimeWindow | null {
  const start_s = resolveEnd(range.from, now_s);
  const end_s = resolveEnd(range.to, now_s);
  return start_s < end_s ? { start_s, end_s } : null;
}

/** True if the range moves with the clock. */
export function isRelative(range: TimeRange): boolean {
  return RELATIVE.test(range.from) || RELATIVE.test(range.to);
}

/** A range with fixed ends, for a link that shows the same to everybody. */
export function absoluteRange(window: TimeWindow): TimeRange {
  return { from: secondsText(window.start_s), to: secondsText(window.end_s) };
}

/** Seconds rounded to milliseconds, without trailing zeros. */
export function secondsText(seconds: number): string {
  return String(Math.round(seconds * 1000) / 1000);
}

/** A window of twice the length around the same middle. It is moved back if it would end after `now_s`. */
export function widened(window: TimeWindow, now_s: number): TimeWindow {
  const length_s = window.end_s - window.start_s;
  const end_s = Math.min(window.end_s + length_s / 2, Math.max(now_s, window.end_s));
  return { start_s: end_s - 2 * length_s, end_s };
}

/** Label of the range on its button. */
export function rangeLabel(range: TimeRange, window: TimeWindow | null): string {
  if (range.to === "now") {
    const preset = PRESETS.find((p) => p.from === range.from);
    if (preset) return preset.label;
    const relative = RELATIVE.exec(range.from);
    if (relative && relative[1] !== undefined) {
      const unit = UNIT_NAMES[relative[2]];
      return Number(relative[1]) === 1 ? `Last ${unit}` : `Last ${Number(relative[1])} ${unit}s`;
    }
  }
  if (window === null) return "choose a time range";
  return `${clockText(window.start_s)} – ${clockText(window.end_s, window.start_s)}`;
}

function two(number: number): string {
  return String(number).padStart(2, "0");
}

/** Local time to the second. The date is omitted if it is that of `beside_s`. */
export function clockText(seconds: number, beside_s?: number): string {
  const date = new Date(seconds * 1000);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (beside_s !== undefined && new Date(beside_s * 1000).toDateString() === date.toDateString()) return clock;
  return `${day} ${clock}`;
}

/** Offset of the local time zone from UTC at a time, such as `UTC+02:00`. */
export function offsetText(seconds: number): string {
  const minutes = -new Date(seconds * 1000).getTimezoneOffset();
  const size = Math.abs(minutes);
  return `UTC${minutes < 0 ? "-" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}
