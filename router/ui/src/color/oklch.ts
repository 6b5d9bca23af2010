// Colours of equal perceived lightness (OKLCH).

/** `#rrggbb` of an OKLCH colour; the chroma is lowered until the colour fits into sRGB. */
export function oklchCss(lightness: number, chroma: number, hue_degrees: number): string {
  for (let c = chroma; ; c *= 0.9) {
    const rgb = oklchToSrgb(lightness, c, hue_degrees);
    if (c < 0.001 || rgb.every((channel) => channel >= -0.001 && channel <= 1.001)) {
      return "#" + rgb.map(hexByte).join("");
    }
  }
}

/** A channel of 0 to 1 as two hexadecimal digits. */
function hexByte(channel: number): string {
  return Math.round(Math.min(Math.max(channel, 0), 1) * 255)
    .toString(16)
    .padStart(2, "0");
}

// The constants are those of Björn Ottosson (2020), "A perceptual color space for image processing".
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
