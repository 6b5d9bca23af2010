// Colours of frames: where code comes from, never chance.
//
// The frame type picks a range of hues; the binary (native code), the package (Go) or the file (the rest)
// a hue in that range, by a hash of its name: the same code has the same colour on every load.
// Lightness is fixed per theme in OKLCH, so that every label passes WCAG AA (a test checks all hues).

import type { Frame } from "../profile/profile_tree";

export type ThemeName = "light" | "dark";

interface HueRange {
  /** As people say it, for the legend. */
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
};

/** Types that agents write in another way. */
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

/** Types of frames that came without one (uploaded pprof), by the ending of their file. */
const ENDINGS: Readonly<Record<string, string>> = {
  go: "go", s: "native", c: "native", cc: "native", cpp: "native", cxx: "native", h: "native", hpp: "native", rs: "native",
  py: "cpython", pyx: "cpython", java: "jvm", kt: "jvm", scala: "jvm", js: "v8js", ts: "v8js", mjs: "v8js", rb: "ruby", php: "php", pl: "perl", cs: "dotnet",
};

/** A key of the legend: a frame type, or "unknown". */
export type ColorClass = string;

/** The class of a frame: its type, else what its file's ending says, else "unknown". */
export function colorClass(frame: Frame | undefined): ColorClass {
  const type = frame?.type?.toLowerCase() ?? "";
  if (type !== "") return ALIASES[type] ?? type;
  const ending = /\.(\w{1,5})$/.exec(frame?.file ?? "")?.[1] ?? "";
  return ENDINGS[ending.toLowerCase()] ?? "unknown";
}

/** How the legend names a class. */
export function classLabel(colorClass: ColorClass): string {
  return HUES[colorClass]?.label ?? colorClass;
}

/** FNV-1a, 32 bits. */
export function hashText(text: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return hash >>> 0;
}

/** Last piece of a path: `/usr/lib/libc.so.6` and `/lib/libc.so.6` look the same. */
function lastPiece(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** What a frame's hue hangs on; "" if nothing is known of it. */
function sourceOf(name: string, key: ColorClass, frame: Frame | undefined): string {
  // `net/http.(*Server).Serve` is of the package `net/http`.
  if (key === "go") return /^(?:[^(]*\/)?[^./(]*/.exec(name)?.[0] ?? name;
  if (key === "native" || key === "kernel" || key === "unknown") return lastPiece(frame?.binary ?? frame?.file ?? (key === "unknown" ? "" : key));
  return lastPiece(frame?.file ?? frame?.binary ?? key);
}

const LIGHTNESS: Readonly<Record<ThemeName, number>> = { light: 0.86, dark: 0.42 };
const CHROMA: Readonly<Record<ThemeName, number>> = { light: 0.085, dark: 0.075 };
/** Neighbouring functions of one binary differ by this much, so that their edge is seen. */
const LIGHTNESS_STEP = 0.022;

/** CSS colour of a frame. */
export function frameColor(name: string, frame: Frame | undefined, theme: ThemeName): string {
  const key = colorClass(frame);
  const step = ((hashText(name) % 3) - 1) * LIGHTNESS_STEP;
  const lightness = LIGHTNESS[theme] + step;
  const source = sourceOf(name, key, frame);
  if (source === "") return oklchCss(lightness, 0.012, 250);
  // Where only the binary is known, it has the whole wheel, palely.
  if (key === "unknown") return oklchCss(lightness, CHROMA[theme] * 0.5, hashText(source) % 360);
  const range = HUES[key] ?? { hue: hashText(key) % 360, spread: 6 };
  const offset = ((hashText(source) % 1000) / 999) * 2 - 1;
  // A frame without a name is known less well, and looks so.
  const chroma = frame?.reason ? CHROMA[theme] * 0.45 : CHROMA[theme];
  return oklchCss(lightness, chroma, range.hue + offset * range.spread);
}

/** The middle colour of a class, for the legend. */
export function classColor(key: ColorClass, theme: ThemeName): string {
  if (key === "unknown") return oklchCss(LIGHTNESS[theme], 0.012, 250);
  return oklchCss(LIGHTNESS[theme] - (theme === "light" ? 0.06 : -0.1), CHROMA[theme] * 1.25, HUES[key]?.hue ?? hashText(key) % 360);
}

/** `#rrggbb` of an OKLCH colour, chroma lowered until it fits into sRGB. */
export function oklchCss(lightness: number, chroma: number, hue_degrees: number): string {
  for (let c = chroma; ; c *= 0.9) {
    const rgb = oklchToSrgb(lightness, c, hue_degrees);
    if (c < 0.001 || rgb.every((channel) => channel >= -0.001 && channel <= 1.001)) {
      return "#" + rgb.map((channel) => Math.round(Math.min(Math.max(channel, 0), 1) * 255).toString(16).padStart(2, "0")).join("");
    }
  }
}

// Björn Ottosson, "A perceptual color space for image processing", 2020.
function oklchToSrgb(lightness: number, chroma: number, hue_degrees: number): [number, number, number] {
  const hue = (hue_degrees * Math.PI) / 180;
  const a = chroma * Math.cos(hue);
  const b = chroma * Math.sin(hue);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    gamma(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    gamma(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    gamma(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

function gamma(linear: number): number {
  return linear <= 0.0031308 ? 12.92 * linear : 1.055 * Math.max(linear, 0) ** (1 / 2.4) - 0.055;
}

/** Everything on the canvas that is not a frame's own colour. */
export interface FlamePalette {
  readonly text: string;
  readonly fadedText: string;
  readonly faded: string;
  /** Two stripes of a block of merged frames. */
  readonly merged: readonly [string, string];
  readonly root: string;
}

export const PALETTES: Readonly<Record<ThemeName, FlamePalette>> = {
  light: { text: "#12181f", fadedText: "#5f6975", faded: "#eceff2", merged: ["#b4bec9", "#cdd5dd"], root: "#d6dce3" },
  dark: { text: "#f3f6fa", fadedText: "#98a4b2", faded: "#262d35", merged: ["#596573", "#414b57"], root: "#3a434e" },
};
