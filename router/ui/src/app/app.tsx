// The page, top to bottom as the question narrows.

import { createMemo, createSignal, Match, onCleanup, Show, Switch } from "solid-js";
import { compileSearch, findMatches, type Matches } from "../profile/matches";
import { Timeline } from "../timeline/timeline";
import { BottomLine } from "../status/status_bar";
import { EmptyState } from "../views/empty/no_profiles";
import { Help } from "./help";
import { NamesNotice } from "../status/names_notice";
import { NoData } from "../views/empty/no_data";
import { Notices } from "../status/notices";
import { createPage, PageProvider } from "../state/app_store";
import { Picture } from "../views/views";
import { createTheme } from "../color/theme";
import { Toolbar } from "../views/toolbar";
import { TopBar } from "../header/header";

export function App() {
  const page = createPage();
  const theme = createTheme();
  const [help, setHelp] = createSignal(false);

  const matches = createMemo<Matches | null>(() => {
    const tree = page.flame.latest()?.tree;
    if (tree === undefined) return null;
    if (page.state.search !== "") {
      const pattern = compileSearch(page.state.search);
      return findMatches(tree, (name) => pattern.test(name));
    }
    if (page.state.pick === "") return null;
    return findMatches(tree, (name) => name === page.state.pick);
  });
  /** The answer if it has any weight: an empty one says why instead. */
  const picture = () => {
    const answer = page.flame.latest();
    return answer !== undefined && answer.total > 0 ? answer : undefined;
  };

  const keys: Record<string, () => void> = {
    "/": () => document.getElementById("search")?.focus(),
    f: () => page.navigate({ flip: !page.state.flip }),
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
    <PageProvider value={page}>
      <TopBar theme={theme} onHelp={() => setHelp(true)} />
      <Notices />
      <Show
        when={!page.isEmpty()}
        fallback={
          <div class="body">
            <EmptyState />
          </div>
        }
      >
        <Timeline theme={theme.name()} />
        <Toolbar matches={matches()} />
        <div class="body">
          <NamesNotice />
          <Switch fallback={<Waiting />}>
            <Match when={picture()}>{(answer) => <Picture answer={answer()} matches={matches()} theme={theme} />}</Match>
            <Match when={page.flame.latest()}>{(answer) => <NoData answer={answer()} />}</Match>
          </Switch>
        </div>
      </Show>
      <BottomLine />
      <Show when={help()}>
        <Help onClose={() => setHelp(false)} />
      </Show>
    </PageProvider>
  );
}

/** Before the first answer: what the page waits for. */
function Waiting() {
  return <section class="empty muted">Nothing to show yet. Press Run to ask.</section>;
}
