// Menu of the label by which the timeline is stacked.

import { createMemo, createResource, For } from "solid-js";
import { fetchLabels } from "../api/prometheus";
import { apiSelector } from "../query/matchers";
import { useStore } from "../state/app_store";

export function ByMenu() {
  const store = useStore();
  const series = () => {
    const window = store.timeWindow();
    if (window === null || store.type() === "") return null;
    return { selector: apiSelector(store.type(), store.matchers() ?? []), window };
  };
  const [labels] = createResource(series, async (selected) => {
    try {
      return await fetchLabels(selected, new AbortController().signal);
    } catch (_noLabels) {
      // The menu then has only the default labels and the current one. The notices show the failure of the query
      // itself.
      return [];
    }
  });
  const choices = createMemo(() => {
    const found = (labels.latest ?? []).filter((label) => label !== "__profile_type__");
    const all = new Set(["service_name", ...found, "thread_name", store.state.by]);
    return [...all].filter((label) => label !== "").sort();
  });
  return (
    <label class="by">
      stacked by
      <select value={store.state.by} onChange={(event) => store.navigate({ by: event.currentTarget.value })}>
        <option value="" selected={store.state.by === ""}>
          nothing
        </option>
        <For each={choices()}>
          {(label) => (
            <option value={label} selected={label === store.state.by}>
              {label}
            </option>
          )}
        </For>
      </select>
    </label>
  );
}
