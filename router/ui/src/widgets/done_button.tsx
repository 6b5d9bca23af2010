// A button that confirms for a moment that its action succeeded.

import { createSignal, onCleanup } from "solid-js";

/** Time for which a button shows a word such as "Copied", in milliseconds. */
const DONE_MS = 1500;

interface DoneButtonProps {
  readonly label: string;
  /** Label after a success. */
  readonly done: string;
  readonly title?: string;
  readonly disabled?: boolean;
  /** Resolves to true on success. */
  act(): Promise<boolean>;
}

export function DoneButton(props: DoneButtonProps) {
  const [isDone, setDone] = createSignal(false);
  let timer: ReturnType<typeof setTimeout> | undefined;
  onCleanup(() => clearTimeout(timer));
  return (
    <button
      type="button"
      class="control"
      title={props.title}
      disabled={props.disabled}
      onClick={() => {
        void props.act().then((worked) => {
          setDone(worked);
          clearTimeout(timer);
          timer = setTimeout(() => setDone(false), DONE_MS);
        });
      }}
    >
      <span aria-live="polite">{isDone() ? props.done : props.label}</span>
    </button>
  );
}
