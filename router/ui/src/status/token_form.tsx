// Form for the bearer token that the server was started with.

import { setToken } from "../api/client";
import { useStore } from "../state/app_store";
import { sentence } from "../text/sentence";

export function TokenForm(props: { message: string }) {
  const store = useStore();
  let field!: HTMLInputElement;
  return (
    <form
      class="notice warn"
      onSubmit={(event) => {
        event.preventDefault();
        setToken(field.value.trim());
        store.restart();
      }}
    >
      <b>This server requires a token.</b> {sentence(props.message)}
      <label>
        Token <input ref={field} type="password" autocomplete="off" required />
      </label>
      <button type="submit" class="control primary">
        Use token
      </button>
      <span class="muted">stored until this tab is closed</span>
    </form>
  );
}
