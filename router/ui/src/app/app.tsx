// The web UI, from top to bottom: query, timeline, views, status bar.

import { createMemo, createSignal, Match, onCleanup, Show, Switch } from "solid-js";
import { createTheme } from "../color/theme";
import { Header } from "../header/header";
import { compileSearch, findMatches, type Matches } from "../profile/matches";
import { createAppStore, StoreProvider } from "../state/app_store";
import { NamesNotice } from "../status/names_notice";
import { Notices } from "../status/notices";
import { StatusBar } from "../status/status_bar";
import { Timeline } from "../timeline/timeline";
import { NoData } from "../views/empty/no_data";
import { NoProfiles } from "../views/empty/no_profiles";
import { Toolbar } from "../views/toolbar";
import { Views } from "../views/views";
import { Help } from "./help";

export function App() {
  const store = createAppStore();
  const theme = createTheme();
  const [help, setHelp] = createSignal(false);

  const matches = createMemo<Matches | null>(() => {
    const tree = store.flame.latest()?.tree;
    if (tree === undefined) return null;
    if (store.state.search !== "") {
      const pattern = compileSearch(store.state.search);
      return findMatches(tree, (name) => pattern.test(name));
    }
    if (store.state.pick === "") return null;
    return findMatches(tree, (name) => name === store.state.pick);
  });
  /** The response; undefined if its total is zero. */
  const nonEmptyResponse = () => {
    const response = store.flame.latest();
    return response !== undefined && response.total > 0 ? response : undefined;
  };

  const noResponse = (): string =>
    store.catalog.pending() || store.flame.pending() ? "Loading …" : "No response yet. Press Run to start the query.";

  const keys: Record<string, () => void> = {
    "/": () => document.getElementById("search")?.focus(),
    f: () => store.navigate({ flip: !store.state.flip }),
    t: theme.toggle,
    "?": () => setHelp(true),
  };
  function onKeyDown(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    const isTyping = target.matches("input, select, textarea, dialog *");
    if (isTyping || event.ctrlKey || event.altKey || event.metaKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  }
  addEventListener("keydown", onKeyDown);
  onCleanup(() => removeEventListener("keydown", onKeyDown));

  return (
    <StoreProvider value={store}>
      <Header theme={theme} onHelp={() => setHelp(true)} />
      <Notices />
      <Show
        when={!store.isEmpty()}
        fallback={
          <div class="body">
            <NoProfiles />
          </div>
        }
      >
        <Timeline theme={theme.name()} />
        <Toolbar matches={matches()} />
        <div class="body">
          <NamesNotice />
          <Switch fallback={<section class="empty muted">{noResponse()}</section>}>
            <Match when={nonEmptyResponse()}>
              {(response) => <Views response={response()} matches={matches()} theme={theme} />}
            </Match>
            <Match when={store.flame.latest()}>{(response) => <NoData response={response()} />}</Match>
          </Switch>
        </div>
      </Show>
      <StatusBar />
      <Show when={help()}>
        <Help onClose={() => setHelp(false)} />
      </Show>
    </StoreProvider>
  );
}
