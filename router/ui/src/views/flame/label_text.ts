// Shortens names to the width of their frames.
//
// The width of a text is the sum of its characters' widths.
// Measuring every label with the canvas would take longer than drawing the whole flame graph.

/** Measures one character in the label font, in CSS pixels. */
export type MeasureCharacter = (character: string) => number;

const ELLIPSIS = "…";

export class LabelFitter {
  private readonly widths = new Map<number, number>();
  private readonly ellipsis_px: number;

  constructor(private readonly measure: MeasureCharacter) {
    this.ellipsis_px = measure(ELLIPSIS);
  }

  /**
   * The whole text if it fits into `limit_px`, otherwise its longest beginning that fits with an ellipsis; "" if that
   * beginning is shorter than two characters.
   */
  fit(text: string, limit_px: number): string {
    let width_px = 0;
    // Longest length, in UTF-16 units, after which the ellipsis still fits.
    let kept = 0;
    for (let at = 0; at < text.length;) {
      const code = text.codePointAt(at) as number;
      const units = code > 0xffff ? 2 : 1;
      width_px += this.width(code);
      if (width_px > limit_px) return kept < 2 ? "" : text.slice(0, kept) + ELLIPSIS;
      at += units;
      if (width_px + this.ellipsis_px <= limit_px) kept = at;
    }
    return text;
  }

  private width(code: number): number {
    let width = this.widths.get(code);
    if (width === undefined) {
      width = this.measure(String.fromCodePoint(code));
      this.widths.set(code, width);
    }
    return width;
  }
}
