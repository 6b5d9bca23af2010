// Button that downloads the selection as pprof. A script does it, so that the request has the token and errors are
// shown.

import { createSignal, Show } from "solid-js";
import { asApiError } from "../api/client";
import { fetchPprof, type FlameQuery } from "../api/flame_graph";
import { useStore } from "../state/app_store";
import { DoneButton } from "../widgets/done_button";

/** Time after which the browser has certainly begun a download, in milliseconds. The file's address is then revoked. */
const REVOKE_MS = 10_000;

export function PprofButton() {
  const store = useStore();
  const [error, setError] = createSignal("");

  async function download(query: FlameQuery): Promise<boolean> {
    setError("");
    try {
      const blob = await fetchPprof(query, new AbortController().signal);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = fileName(query.profileType);
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), REVOKE_MS);
      return true;
    } catch (failure) {
      setError(asApiError(failure).message);
      return false;
    }
  }

  return (
    <>
      <Show when={error()}>
        <span class="field-error" role="alert">
          pprof: {error()}
        </span>
      </Show>
      <DoneButton
        label="pprof"
        done="Saved"
        title="Download the selection as a gzipped pprof profile"
        disabled={(store.flame.latest()?.total ?? 0) === 0}
        act={async () => {
          const response = store.flame.latest();
          return response !== undefined && (await download(response.query));
        }}
      />
    </>
  );
}

/** Name of the downloaded file, from the name and sample type of a profile type: `process_cpu_cpu.pb.gz`. */
function fileName(profileType: string): string {
  const [name, sampleType = ""] = profileType.split(":");
  return `${name}_${sampleType}.pb.gz`.replace(/[^\w.-]/g, "_");
}
