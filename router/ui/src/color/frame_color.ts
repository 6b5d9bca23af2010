// Colours of frames, which show where code comes from.
//
// The frame type selects a range of hues.
// A hash of the binary (native code), package (Go) or file (other languages) selects a hue in that range.
// The same code therefore has the same colour on every load.
// Lightness is fixed per theme in OKLCH, so that every label passes WCAG AA (a test checks all hues).

import type { Frame } from "../profile/profile_tree";
import { hashText } from "../text/hash";
import { oklchCss } from "./oklch";
import type { ThemeName } from "./palette";

interface HueRange {
  /** Name in the legend. */
  readonly label: string;
  readonly hue: number;
  /** Hues go from `hue - spread` to `hue + spread`, in degrees. */
  readonly spread: number;
}

const HUES: Readonly<Record<string, HueRange>> = {
  kernel: { label: "kernel", hue: 45, spread: 8 },
  native: { label: "native", hue: 250, spread: 45 },
  go: { label: "Go", hue: 190, spread: 16 },
  jvm: { label: "JVM", hue: 25, spread: 10 },
  cpython: { label: "Python", hue: 95, spread: 10 },
  v8js: { label: "JavaScript", hue: 145, spread: 10 },
  ruby: { label: "Ruby", hue: 5, spread: 8 },
  php: { label: "PHP", hue: 310, spread: 7 },
  perl: { label: "Perl", hue: 330, spread: 7 },
  dotnet: { label: ".NET", hue: 345, spread: 6 },
  beam: { label: "BEAM", hue: 120, spread: 8 },
  luajit: { label: "Lua", hue: 170, spread: 8 },
  "abort-marker": { label: "unwinding stopped", hue: 285, spread: 4 },
};

/** Other spellings of frame types that some agents send. */
const ALIASES: Readonly<Record<string, string>> = {
  python: "cpython",
  hotspot: "jvm",
  java: "jvm",
  v8: "v8js",
  node: "v8js",
  javascript: "v8js",
  rust: "native",
  "c++": "native",
  c: "native",
};

/** Frame types by file extension, for frames that were sent without a type (uploaded pprof). */
const EXTENSIONS: Readonly<Record<string, string>> = {
  go: "go",
  s: "native",
  c: "native",
  cc: "native",
  cpp: "native",
  cxx: "native",
  h: "native",
  hpp: "native",
  rs: "native",
  py: "cpython",
  pyx: "cpython",
  java: "jvm",
  kt: "jvm",
  scala: "jvm",
  js: "v8js",
  ts: "v8js",
  mjs: "v8js",
  rb: "ruby",
  php: "php",
  pl: "perl",
  cs: "dotnet",
};

/** A key of the legend: a frame type, or "unknown" for frames whose type is not known. */
export type ColorClass = string;

/** The class of a frame: its type, otherwise the type of its file extension, otherwise "unknown". */
export function colorClass(frame: Frame | undefined): ColorClass {
  const type = frame?.type?.toLowerCase() ?? "";
  if (type !== "") return ALIASES[type] ?? type;
  const extension = /\.(\w{1,5})$/.exec(frame?.file ?? "")?.[1] ?? "";
  return EXTENSIONS[extension.toLowerCase()] ?? "unknown";
}

/** Name of a class in the legend. */
export function classLabel(colorClass: ColorClass): string {
  return HUES[colorClass]?.label ?? colorClass;
}

/** File name of a path, so that `/usr/lib/libc.so.6` and `/lib/libc.so.6` have one colour. */
function fileName(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** Text whose hash selects a frame's hue; "" if its origin is unknown. */
function sourceOf(name: string, key: ColorClass, frame: Frame | undefined): string {
  // For example, `net/http.(*Server).Serve` is in the package `net/http`.
  if (key === "go") return /^(?:[^(]*\/)?[^./(]*/.exec(name)?.[0] ?? name;
  if (key === "native" || key === "kernel" || key === "unknown")
    return fileName(frame?.binary ?? frame?.file ?? (key === "unknown" ? "" : key));
  return fileName(frame?.file ?? frame?.binary ?? key);
}

const LIGHTNESS: Readonly<Record<ThemeName, number>> = { light: 0.86, dark: 0.42 };
const CHROMA: Readonly<Record<ThemeName, number>> = { light: 0.085, dark: 0.075 };
/** Difference in lightness between functions of one binary, so that the edges between their frames are visible. */
const LIGHTNESS_STEP = 0.022;

/** CSS colour of a frame. */
export function frameColor(name: string, frame: Frame | undefined, theme: ThemeName): string {
  const key = colorClass(frame);
  const step = ((hashText(name) % 3) - 1) * LIGHTNESS_STEP;
  const lightness = LIGHTNESS[theme] + step;
  const source = sourceOf(name, key, frame);
  if (source === "") return oklchCss(lightness, 0.012, 250);
  // If only the binary is known, any hue is possible, at half the chroma.
  if (key === "unknown") return oklchCss(lightness, CHROMA[theme] * 0.5, hashText(source) % 360);
  const range = HUES[key] ?? { hue: hashText(key) % 360, spread: 6 };
  const offset = ((hashText(source) % 1000) / 999) * 2 - 1;
  // A frame without a name is paler.
  const chroma = frame?.reason ? CHROMA[theme] * 0.45 : CHROMA[theme];
  return oklchCss(lightness, chroma, range.hue + offset * range.spread);
}

/** Colour in the middle of a class's hues, for the legend. */
export function classColor(key: ColorClass, theme: ThemeName): string {
  if (key === "unknown") return oklchCss(LIGHTNESS[theme], 0.012, 250);
  return oklchCss(
    LIGHTNESS[theme] - (theme === "light" ? 0.06 : -0.1),
    CHROMA[theme] * 1.25,
    HUES[key]?.hue ?? hashText(key) % 360,
  );
}
