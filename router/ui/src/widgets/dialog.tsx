// A modal dialog. It is the browser's own, which keeps the focus inside, and returns the focus on close.

import { onCleanup, onMount, type JSX } from "solid-js";
import { useStore } from "../state/app_store";

export function Dialog(props: { title: string; onClose(): void; children: JSX.Element }) {
  const store = useStore();
  let dialog!: HTMLDialogElement;
  onMount(() => {
    dialog.showModal();
    // The views must not change while the user reads about them.
    onCleanup(store.hold());
  });
  return (
    <dialog
      class="dialog"
      ref={dialog}
      aria-label={props.title}
      onClose={() => props.onClose()}
      onClick={(event) => event.target === dialog && dialog.close()}
      onKeyDown={(event) => event.stopPropagation()}
    >
      <div class="dialog-body">
        <h2>
          {props.title}
          <button type="button" class="control icon" aria-label="Close" onClick={() => dialog.close()}>
            ×
          </button>
        </h2>
        {props.children}
      </div>
    </dialog>
  );
}
