// Colours of the flame graph's canvas that do not depend on a frame.

/** A colour scheme of the web UI. */
export type ThemeName = "light" | "dark";

export interface FlamePalette {
  readonly text: string;
  readonly fadedText: string;
  readonly faded: string;
  /** Colours of the two stripes of a block of merged frames. */
  readonly merged: readonly [string, string];
  readonly root: string;
}

export const PALETTES: Readonly<Record<ThemeName, FlamePalette>> = {
  light: {
    text: "#12181f",
    fadedText: "#5f6975",
    faded: "#eceff2",
    merged: ["#b4bec9", "#cdd5dd"],
    root: "#d6dce3",
  },
  dark: {
    text: "#f3f6fa",
    fadedText: "#98a4b2",
    faded: "#262d35",
    merged: ["#596573", "#414b57"],
    root: "#3a434e",
  },
};
