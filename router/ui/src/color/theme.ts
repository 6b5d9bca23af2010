// Light and dark: the system's choice until the person makes one, which this browser then keeps.

import { createSignal, type Accessor } from "solid-js";
import type { ThemeName } from "./frame_color";

const KEY = "varve-theme";

export interface Theme {
  readonly name: Accessor<ThemeName>;
  toggle(): void;
}

export function createTheme(): Theme {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = (): ThemeName | null => {
    const kept = localStorage.getItem(KEY);
    return kept === "light" || kept === "dark" ? kept : null;
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
      // Going back to what the system says is following the system again.
      if (next === system()) localStorage.removeItem(KEY);
      else localStorage.setItem(KEY, next);
      apply(next);
    },
  };
}
