// Integers of a response that may exceed what a JavaScript number holds exactly.

/** An integer from the server: a number if a number holds it exactly, otherwise its decimal digits. */
export type WireInteger = number | string;

/** The nearest number, for drawing and for percentages. Exact values are shown from the digits. */
export function wireNumber(integer: WireInteger): number {
  return typeof integer === "number" ? integer : Number(integer);
}
