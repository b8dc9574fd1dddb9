// Tables that experiments/tables wrote into the run folders.

import { get } from "./api.js";
import { el, picture, show } from "./dom.js";

/** Create the view of all tables. */
export function tables(state) {
  const node = el("div", {}, el("p", { class: "quiet" }, "Loading …"));
  get("tables").then(({ tables: all }) => show(node, all.length
    ? all.map(table) : el("p", { class: "quiet" }, "There are no tables yet. Create one with python -m experiments.tables.planning.")),
  (error) => state.note(error.message));
  return { node, runsChanged() {}, close() {} };
}

function table({ id, name, blocks, svg }) {
  return el("section", {}, el("h2", {}, name, " ", el("span", { class: "quiet" }, id)), blocks.map(block),
    svg ? el("div", { class: "board" }, picture(svg, `drawing of the table ${name}`)) : null);
}

function block(one) {
  if (one.kind === "heading") return el("h3", {}, one.text);
  if (one.kind === "text") return el("p", {}, one.text);
  if (one.kind === "code") return el("pre", {}, one.text);
  const [head, ...rows] = one.rows;
  return el("div", { class: "scroll" }, el("table", {}, el("tr", {}, head.map((cell) => el("th", {}, cell))),
    rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell))))));
}
