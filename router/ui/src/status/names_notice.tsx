// Notice that names are still missing, and in which files. Without it, addresses would look final.

import { Show } from "solid-js";
import { useStore } from "../state/app_store";
import { printable } from "../text/printable";

/** The files in words, such as `libpython3.11.so.1.0 and 3 more`. */
function filesInWords(paths: readonly string[]): string {
  const first = paths[0].split("/").pop() || "a file without a name";
  return paths.length === 1 ? first : `${first} and ${paths.length - 1} more`;
}

export function NamesNotice() {
  const store = useStore();
  const pending = () => {
    const paths = store.flame.latest()?.pendingFiles ?? [];
    return paths.length === 0 ? undefined : paths;
  };
  return (
    <Show when={pending()}>
      {(paths) => (
        <div class="notice names" role="status" title={paths().map(printable).join("\n")}>
          <Show
            when={!store.hasNamesTimedOut()}
            fallback={
              <>Symbol tables are still being built for {printable(filesInWords(paths()))}. Press Run to check again.</>
            }
          >
            Symbol tables are being built for {printable(filesInWords(paths()))}. Names appear automatically.
          </Show>
        </div>
      )}
    </Show>
  );
}
