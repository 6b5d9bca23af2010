// In the view itself: names are on their way, and whose. Without it, addresses look like all that is known.

import { Show } from "solid-js";
import { printable } from "../text/printable";
import { usePage } from "../state/app_store";

/** The files in words: `libpython3.11.so.1.0 and 3 more`. */
export function filesInWords(paths: readonly string[]): string {
  const first = paths[0].split("/").pop() || "a file without a name";
  return paths.length === 1 ? first : `${first} and ${paths.length - 1} more`;
}

export function NamesNotice() {
  const page = usePage();
  const pending = () => {
    const paths = page.flame.latest()?.namesPending ?? [];
    return paths.length === 0 ? undefined : paths;
  };
  return (
    <Show when={pending()}>
      {(paths) => (
        <div class="notice names" role="status" title={paths().map(printable).join("\n")}>
          <Show
            when={!page.namesGivenUp()}
            fallback={<>Symbol tables are still being built for {printable(filesInWords(paths()))}: press Run to ask again.</>}
          >
            Symbol tables are being built for {printable(filesInWords(paths()))}: names appear by themselves.
          </Show>
        </div>
      )}
    </Show>
  );
}
