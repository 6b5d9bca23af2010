// How much of a name fits into a frame.
//
// Widths are summed from a table of single characters: measuring every label with the canvas
// would cost more than drawing the whole graph.

/** Measures one character in the label font, in CSS pixels. */
export type MeasureCharacter = (character: string) => number;

const ELLIPSIS = "…";

export class LabelFitter {
  private readonly widths = new Map<number, number>();
  private readonly ellipsis_px: number;

  constructor(private readonly measure: MeasureCharacter) {
    this.ellipsis_px = measure(ELLIPSIS);
  }

  /** The longest beginning of `text` that fits into `room_px`, with an ellipsis if cut; "" if nothing useful fits. */
  fit(text: string, room_px: number): string {
    let width_px = 0;
    // Where to cut if the whole does not fit: the last place that leaves room for the ellipsis.
    let cut = 0;
    for (let at = 0; at < text.length; ) {
      const code = text.codePointAt(at) as number;
      const units = code > 0xffff ? 2 : 1;
      width_px += this.width(code);
      if (width_px > room_px) return cut < 2 ? "" : text.slice(0, cut) + ELLIPSIS;
      at += units;
      if (width_px + this.ellipsis_px <= room_px) cut = at;
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
