// Entry of the page.

import { render } from "solid-js/web";
import "uplot/dist/uPlot.min.css";
import "./style/page.css";
import "./style/controls.css";
import "./style/question.css";
import "./style/notices.css";
import "./style/picture.css";
import "./style/tooltip.css";
import "./style/states.css";
import { App } from "./page/app";

const root = document.getElementById("page");
if (root !== null) render(() => <App />, root);
