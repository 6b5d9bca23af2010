// Slowdown of this browser right now, compared with an idle machine.
//
// The time limits of drawing hold for an idle machine. On a busy machine, the browser waits for a core, and every test
// fails.
// The tests therefore run chunks of fixed work between the measured operations, in the same tab and thread.
// The fastest chunk shows the speed without waiting; the other chunks show what waiting adds.
// On an idle machine the slowdown is close to 1, so that slow code still fails.

import type { Page } from "playwright-core";

/** Length of a chunk on an idle machine, in milliseconds: a third of a frame. */
const CHUNK_MS = 5;
/** Number of chunks per call of `sample`. */
const CHUNKS = 12;

export class Calibration {
  private readonly bursts: number[][] = [];
  private rounds = 0;

  constructor(private readonly page: Page) {}

  /** Runs some chunks in the tab. */
  async sample(): Promise<void> {
    if (this.rounds === 0) this.rounds = await this.roundsPerChunk();
    this.bursts.push(await this.page.evaluate(timeChunks, { count: CHUNKS, rounds: this.rounds }));
  }

  /**
   * Factor by which operations that take `length_ms` on an idle machine are slower now, at the quantile `share` (0 to
   * 1). It is never less than one.
   *
   * It is computed from sums over consecutive chunks. A sum has as many chunks as take `length_ms`, but at most all
   * chunks of one sample.
   */
  slowdown(length_ms: number, share: number): number {
    const width = Math.min(Math.max(Math.round(length_ms / CHUNK_MS), 1), CHUNKS);
    const fastest = Math.min(...this.bursts.flat());
    const ratios = this.bursts.flatMap((burst) =>
      Array.from({ length: CHUNKS - width + 1 }, (_, i) => sum(burst.slice(i, i + width)) / (fastest * width)),
    );
    return Math.max(quantile(ratios, share), 1);
  }

  /** Number of rounds of work that take `CHUNK_MS` on an idle machine. */
  private async roundsPerChunk(): Promise<number> {
    const rounds = 1_000_000;
    const tried = await this.page.evaluate(timeChunks, { count: 40, rounds });
    return Math.round((rounds * CHUNK_MS) / Math.min(...tried));
  }
}

/** Times `count` chunks of work, in milliseconds. Runs in the tab, and so refers to nothing outside of itself. */
function timeChunks({ count, rounds }: { count: number; rounds: number }): number[] {
  const table = new Int32Array(4096);
  return Array.from({ length: count }, () => {
    const start_ms = performance.now();
    let hash = 1;
    for (let i = 0; i < rounds; i++) {
      hash = Math.imul(hash ^ i, 0x01000193);
      table[hash & 4095] += hash;
    }
    return performance.now() - start_ms;
  });
}

/** The value below which `share` (0 to 1) of the values lie. */
export function quantile(values: readonly number[], share: number): number {
  return [...values].sort((a, b) => a - b)[Math.min(Math.floor(values.length * share), values.length - 1)];
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
