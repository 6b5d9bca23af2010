// Entry of the page.

import { render } from "solid-js/web";
import "uplot/dist/uPlot.min.css";
import "./style/base.css";
import "./style/controls.css";
import "./style/header.css";
import "./style/status.css";
import "./style/views.css";
import "./style/tooltip.css";
import "./style/empty.css";
import { App } from "./app/app";

const root = document.getElementById("page");
if (root !== null) render(() => <App />, root);
