// The colour scheme in use. It is the system's until the user chooses another one, which this browser then remembers.

import { createSignal, type Accessor } from "solid-js";
import type { ThemeName } from "./palette";

const KEY = "varve-theme";

export interface Theme {
  readonly name: Accessor<ThemeName>;
  toggle(): void;
}

export function createTheme(): Theme {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = (): ThemeName | null => {
    const stored = localStorage.getItem(KEY);
    return stored === "light" || stored === "dark" ? stored : null;
  };
  const system = (): ThemeName => (dark.matches ? "dark" : "light");
  const [name, setName] = createSignal<ThemeName>(chosen() ?? system());
  const apply = (theme: ThemeName): void => {
    document.documentElement.dataset.theme = theme;
    setName(theme);
  };
  dark.addEventListener("change", () => {
    if (chosen() === null) apply(system());
  });
  apply(name());
  return {
    name,
    toggle: () => {
      const next = name() === "dark" ? "light" : "dark";
      // A user who returns to the system's theme wants to follow the system again.
      if (next === system()) localStorage.removeItem(KEY);
      else localStorage.setItem(KEY, next);
      apply(next);
    },
  };
}
