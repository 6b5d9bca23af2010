// Values as text, for example in cores, CPU seconds or GiB, and per cent with one decimal place.
//
// The unit of a profile type comes from its sender. An unknown unit is printed unchanged.

/** Properties of a profile type that decide how its values are shown. */
export interface Measure {
  /** Unit of the sample type: `nanoseconds`, `bytes`, `count`, ... */
  readonly unit: string;
  /** True for CPU time, whose rate (CPU seconds per second) is shown in cores. */
  readonly cpu: boolean;
  /** True if values are not added up over time. */
  readonly gauge: boolean;
  /** Name of what is counted: `samples`, `alloc_objects`, ... */
  readonly sampleType: string;
}

/** The measure of a profile type `name:sample_type:sample_unit:period_type:period_unit`. */
export function measureOf(profileType: string, gauge: boolean): Measure {
  const [, sampleType = "", unit = ""] = profileType.split(":");
  return { unit, cpu: sampleType === "cpu" && unit in SECONDS, gauge, sampleType };
}

/** Short form of a profile type for menus: `name: sample type`. */
export function profileTypeLabel(profileType: string): string {
  const [name, sampleType] = profileType.split(":");
  return sampleType ? `${name}: ${sampleType}` : name;
}

const SECONDS: Readonly<Record<string, number>> = {
  nanoseconds: 1e-9,
  microseconds: 1e-6,
  milliseconds: 1e-3,
  seconds: 1,
};

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const COUNTS = ["", "k", "M", "G", "T", "P"];

/** A number with at most three significant digits and grouped thousands. Only a size below 1e-6 has an exponent. */
export function plainNumber(value: number): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-6) return value.toExponential(1);
  if (size < 0.001) return String(Number(value.toPrecision(2)));
  // Each limit is that of the rounded number: 0.9996 is shown as `1.00`.
  const decimals = size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3;
  const text = value.toFixed(decimals);
  return decimals === 0 ? groupDigits(text) : text;
}

/** Groups digits: `1234567` becomes `1,234,567`. Takes text, so that integers beyond 2^53 stay exact. */
export function groupDigits(digits: string): string {
  return digits.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** A value divided by `step` as often as possible, with the name of the resulting unit. */
function scaled(value: number, step: number, names: readonly string[]): string {
  let index = 0;
  // Compares with the limit of the rounded number: 1023.6 KiB must not be shown as `1,024 KiB`.
  while (index < names.length - 1 && Math.abs(value) >= step * 0.9995) {
    value /= step;
    index++;
  }
  const number = index === 0 && Number.isInteger(value) ? groupDigits(String(value)) : plainNumber(value);
  return names[index] === "" ? number : `${number} ${names[index]}`;
}

/** Seconds in the most readable unit, such as `12 ms`, `3.20 s` or `4.1 h`. */
export function duration(seconds: number, kind = ""): string {
  const of = kind === "" ? "" : `${kind} `;
  const size = Math.abs(seconds);
  if (size === 0) return `0 ${of}s`;
  if (size < 1e-6) return `${plainNumber(seconds * 1e9)} ${of}ns`;
  if (size < 1e-3) return `${plainNumber(seconds * 1e6)} ${of}µs`;
  if (size < 1) return `${plainNumber(seconds * 1e3)} ${of}ms`;
  if (size < 36_000) return `${plainNumber(seconds)} ${of}s`;
  return `${plainNumber(seconds / 3600)} ${of}h`;
}

/** A sum over the window, or the value of a gauge, in the unit of its profile type. */
export function formatValue(value: number, measure: Measure): string {
  const factor = SECONDS[measure.unit];
  if (factor !== undefined) return duration(value * factor, measure.cpu ? "CPU" : "");
  if (measure.unit === "bytes") return scaled(value, 1024, BYTES);
  if (measure.unit === "count" || measure.unit === "") return scaled(value, 1000, COUNTS);
  return `${scaled(value, 1000, COUNTS)} ${measure.unit}`;
}

/** A value per second, as `rate()` returns it, in cores for CPU time. A gauge is shown as its value. */
export function formatRate(rate: number, measure: Measure): string {
  if (measure.gauge) return formatValue(rate, measure);
  if (measure.cpu && rate !== 0 && Math.abs(rate) < 0.01) return `${plainNumber(rate * 1000)} mcores`;
  if (measure.cpu) return `${plainNumber(rate)} ${rate === 1 ? "core" : "cores"}`;
  // The unit is time per second. For off-CPU and wall time, this is the mean number of waiting threads.
  if (SECONDS[measure.unit] !== undefined) return `${duration(rate)}/s`;
  if (measure.unit === "bytes") return `${scaled(rate, 1024, BYTES)}/s`;
  return `${formatValue(rate, measure)}/s`;
}

/** A rate for an axis, without trailing zeros after the decimal point. */
export function formatAxis(rate: number, measure: Measure): string {
  return formatRate(rate, measure).replace(/^(-?[\d,]+)\.0+(?=\D)|^(-?[\d,]+\.\d*?[1-9])0+(?=\D)/, "$1$2");
}

/** The rate of a sum over a window, as `rate()` returns it (nanoseconds become seconds). */
export function rateOf(sum: number, measure: Measure, window_s: number): number {
  if (measure.gauge) return sum;
  return (sum * (SECONDS[measure.unit] ?? 1)) / window_s;
}

/**
 * Per cent to one decimal place. A part above 0 is never shown as `0.0 %`, and an incomplete whole never as `100.0 %`.
 */
export function perCent(part: number, whole: number): string {
  if (whole === 0 || part === 0) return "0.0 %";
  const share = (part / whole) * 100;
  if (share < 0.05) return "< 0.1 %";
  if (share >= 99.95 && part < whole) return "> 99.9 %";
  return `${share.toFixed(1)} %`;
}

/** A count in few characters: `1.2 M`. */
export function shortCount(count: number): string {
  return scaled(count, 1000, COUNTS);
}
