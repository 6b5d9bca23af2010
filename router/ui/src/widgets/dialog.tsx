// A modal dialog: the browser's own, which keeps the focus inside and gives it back.

import { onCleanup, onMount, type JSX } from "solid-js";
import type { Page } from "../state/app_store";

export function Dialog(props: { title: string; page: Page; onClose(): void; children: JSX.Element }) {
  let dialog!: HTMLDialogElement;
  onMount(() => {
    dialog.showModal();
    // No new picture while somebody reads about this one.
    props.page.setHeld(true);
    onCleanup(() => props.page.setHeld(false));
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
