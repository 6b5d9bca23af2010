// Frames without names whose symbol tables the server is building: asks until they are there, then takes the answer with names.
//
// What is asked again and again is the answer without its tree, of the same question: the picture changes only when names have come.

import { createEffect, createSignal, on, onCleanup, type Accessor } from "solid-js";
import { askFlame, askNamesPending, type FlameAnswer, type FlameQuestion } from "../api/flame_graph";

/** Milliseconds before each question; the last of them before every further one. */
const PAUSES_MS = [500, 1_000, 1_000, 2_000, 2_000, 3_000, 5_000, 10_000];
/** The server gives up a symbol table after five minutes; so does the page. */
const GIVE_UP_MS = 300_000;

interface Watched {
  readonly answer: Accessor<FlameAnswer | undefined>;
  /** False while a new picture would disturb, or nobody sees it: then nothing is asked. */
  canRedraw(): boolean;
  redraw(answer: FlameAnswer): void;
}

export interface NamesWatch {
  /** True when names have not come for so long that they are not asked for any more. */
  readonly givenUp: Accessor<boolean>;
}

export function createNamesWatch({ answer, canRedraw, redraw }: Watched): NamesWatch {
  const [givenUp, setGivenUp] = createSignal(false);
  // Of the question whose names are waited for: an answer with some of them does not begin the wait anew.
  let question: FlameQuestion | undefined;
  let began_ms = 0;

  createEffect(
    on(answer, (shown) => {
      setGivenUp(false);
      if (shown === undefined || shown.namesPending.length === 0) return;
      if (shown.question !== question) [question, began_ms] = [shown.question, Date.now()];
      const stop = new AbortController();
      let timer: ReturnType<typeof setTimeout>;
      let asked = 0;
      const again = (): void => {
        if (Date.now() - began_ms > GIVE_UP_MS) setGivenUp(true);
        else timer = setTimeout(() => void poll(), PAUSES_MS[Math.min(asked, PAUSES_MS.length - 1)]);
      };
      const poll = async (): Promise<void> => {
        if (canRedraw()) {
          asked++;
          const named = await answerWithNames(shown, stop.signal);
          if (stop.signal.aborted) return;
          // Somebody may have opened a menu meanwhile: then it is asked again later.
          if (named !== undefined && canRedraw()) return redraw(named);
        }
        again();
      };
      again();
      onCleanup(() => {
        stop.abort();
        clearTimeout(timer);
      });
    }),
  );
  return { givenUp };
}

/** The answer to the same question, once fewer files lack their names; undefined before that, and where the server cannot be asked. */
async function answerWithNames(shown: FlameAnswer, signal: AbortSignal): Promise<FlameAnswer | undefined> {
  try {
    const pending = await askNamesPending(shown.question, signal);
    const have = shown.namesPending.filter((file) => !pending.includes(file));
    return have.length === 0 ? undefined : await askFlame(shown.question, signal);
  } catch (_unreachable) {
    // Asking again is all that can be done; what the person asks for says what is wrong.
    return undefined;
  }
}
