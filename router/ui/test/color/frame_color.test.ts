import { expect, test } from "vitest";
import { classColor, classLabel, colorClass, frameColor } from "../../src/color/frame_color";
import { PALETTES, type ThemeName } from "../../src/color/palette";

/** WCAG 2 contrast of two `#rrggbb` colours. */
function contrast(one: string, other: string): number {
  const luminance = (color: string): number => {
    const [r, g, b] = [1, 3, 5].map((at) => {
      const channel = Number.parseInt(color.slice(at, at + 2), 16) / 255;
      return channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
}

const TYPES = [
  "kernel",
  "native",
  "go",
  "jvm",
  "cpython",
  "v8js",
  "ruby",
  "php",
  "perl",
  "dotnet",
  "beam",
  "luajit",
  "abort-marker",
  "new-type",
  "",
];

test("labels on every colour pass AA in both themes", () => {
  for (const theme of ["light", "dark"] as ThemeName[]) {
    const palette = PALETTES[theme];
    for (const type of TYPES) {
      for (let i = 0; i < 200; i++) {
        for (const reason of [undefined, "no_debug_file"]) {
          expect(
            contrast(frameColor(`f${i}`, { type, binary: `/bin/b${i}`, reason }, theme), palette.text),
          ).toBeGreaterThanOrEqual(4.5);
        }
      }
    }
    expect(contrast(palette.root, palette.text)).toBeGreaterThanOrEqual(4.5);
    expect(contrast(palette.faded, palette.fadedText)).toBeGreaterThanOrEqual(4.5);
  }
});

test("the legend says where unwinding stopped, and has no code of the format", () => {
  expect(classLabel(colorClass({ type: "abort-marker" }))).toBe("unwinding stopped");
});

test("a colour depends on the names of binary and function, not on the path", () => {
  const one = frameColor("f", { type: "native", binary: "/usr/lib/libc.so.6" }, "light");
  expect(frameColor("f", { type: "native", binary: "/lib/libc.so.6" }, "light")).toBe(one);
  expect(frameColor("f", { type: "native", binary: "/usr/bin/api" }, "light")).not.toBe(one);
  expect(frameColor("f", { type: "kernel" }, "light")).not.toBe(frameColor("f", { type: "cpython" }, "light"));
});

test("a Go frame's hue depends on its package, others' on their binary", () => {
  const go = (name: string): string => frameColor(name, { type: "go", binary: "/usr/bin/api", file: "x.go" }, "light");
  const names = [
    "net/http.(*Server).Serve",
    "net/http.HandlerFunc.ServeHTTP",
    "encoding/json.Unmarshal",
    "main.main",
    "runtime.mallocgc",
    "github.com/a/b/c.(*T).M",
  ];
  // Lightness may differ between functions of one package, so many functions of each package are compared.
  const colors = (prefix: string): Set<string> => new Set(Array.from({ length: 60 }, (_, i) => go(`${prefix}F${i}`)));
  expect(colors("net/http.").size).toBeLessThanOrEqual(3);
  for (const color of colors("net/http.")) expect(colors("encoding/json.").has(color)).toBe(false);
  expect(names.map(go).every((color) => /^#[0-9a-f]{6}$/.test(color))).toBe(true);
  expect(frameColor("f", { binary: "/bin/a" }, "light")).not.toBe(frameColor("f", { binary: "/bin/b" }, "light"));
});

test("frame types of other agents map to the same classes", () => {
  expect(colorClass({ type: "CPython" })).toBe("cpython");
  expect(colorClass({ type: "hotspot" })).toBe("jvm");
  expect(colorClass({ file: "/src/app/main.go" })).toBe("go");
  expect(colorClass({ file: "lib.cc", type: "kernel" })).toBe("kernel");
  expect(colorClass({ file: "constructor" })).toBe("unknown");
  expect(colorClass({})).toBe("unknown");
  expect(colorClass(undefined)).toBe("unknown");
  expect(classColor("kernel", "dark")).toMatch(/^#[0-9a-f]{6}$/);
});
