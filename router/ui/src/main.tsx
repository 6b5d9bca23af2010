// Entry point of the web UI.

import { render } from "solid-js/web";
import "uplot/dist/uPlot.min.css";
import "./style/base.css";
import "./style/controls.css";
import "./style/header.css";
import "./style/timeline.css";
import "./style/status.css";
import "./style/dialog.css";
import "./style/views.css";
import "./style/flame.css";
import "./style/table.css";
import "./style/empty.css";
import { App } from "./app/app";

const root = document.getElementById("app");
if (root !== null) render(() => <App />, root);
