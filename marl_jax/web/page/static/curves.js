// Curves of the chosen runs, updated as they are logged: evaluations with intervals, then training metrics.

import { Feed, get } from "./api.js";
import { chart, COLOURS } from "./chart.js";
import { el, folded, number, show, words } from "./dom.js";

const FIRST = ["success", "reward", "return", "draws", "game_length", "entropy", "kl", "explained_variance", "loss",
  "policy_loss", "value_loss", "grad_norm"];
const EVERY = 3000;

/** Create the view; `state.chosen` has the ids of the runs. */
export function curves(state) {
  const feeds = new Map(), panel = el("div"), controls = { x: "step", smooth: true, search: "" };
  let help = { training: {}, evaluation: {} };
  get("metrics").then((found) => { help = found; draw(); }, (error) => state.note(error.message));
  const about = new Map(); // details stay unfolded when curves are redrawn
  let stopped = false, timer = null, drawn = "", unfolded = false;

  const picker = el("div", { class: "card runs" });
  const search = el("input", { type: "search", placeholder: "find a metric", "aria-label": "find a metric",
    oninput: () => { controls.search = search.value.toLowerCase(); draw(); } });
  const time = el("select", { "aria-label": "axis", onchange: () => { controls.x = time.value; draw(); } },
    el("option", { value: "step" }, "by step"), el("option", { value: "time" }, "by time"));
  const smooth = el("input", { type: "checkbox", checked: true, onchange: () => { controls.smooth = smooth.checked; draw(); } });

  function pick() {
    show(picker, state.runs.map((run) => {
      const at = state.chosen.indexOf(run.id);
      const box = el("input", { type: "checkbox", checked: at >= 0, onchange: () => choose(run.id, box.checked) });
      return el("label", { title: `${run.environment}, ${run.model}, ${run.algorithm}` }, box, " ",
        at >= 0 ? el("span", { class: `swatch k${at % COLOURS}` }) : null, run.id, " ",
        el("span", { class: "quiet" }, `${run.environment} · ${run.model} · ${run.algorithm}`));
    }), state.runs.length ? null : el("span", { class: "quiet" }, "There are no runs yet."));
  }

  function choose(id, on) {
    state.chosen = on ? [...state.chosen, id] : state.chosen.filter((other) => other !== id);
    pick();
    refresh();
  }

  function feedsOf(id) {
    if (!feeds.has(id)) {
      const feed = (file) => new Feed(id, file);
      feeds.set(id, { metrics: feed("metrics.jsonl"), evals: feed("eval.jsonl"), events: feed("events.jsonl") });
    }
    return feeds.get(id);
  }

  async function refresh() {
    clearTimeout(timer);
    if (!document.hidden) {
      try {
        const all = state.chosen.map(feedsOf).flatMap((f) => Object.values(f));
        await Promise.all(all.map((feed) => feed.update()));
        state.note("");
      } catch (error) {
        state.note(error.message);
      }
      const now = JSON.stringify(state.chosen.map((id) => [id, Object.values(feedsOf(id)).map((feed) => feed.mark)]));
      if (!stopped && now !== drawn) { drawn = now; draw(); }
    }
    if (!stopped) timer = setTimeout(refresh, EVERY);
  }

  function draw() {
    const runs = state.chosen.map((id, colour) => ({ id, colour, ...feedsOf(id) }));
    const start = new Map(runs.map((run) => [run.id, run.metrics.rows[0]?.time ?? run.evals.rows[0]?.time ?? 0]));
    const x = (run, row) => (controls.x === "step" ? row.step : (row.time - start.get(run.id)) / 60);
    const label = controls.x === "step" ? (v) => `step ${number(Math.round(v))}` : (v) => `${number(v)} min`;
    const wanted = (name) => words(name).toLowerCase().includes(controls.search) || name.includes(controls.search);
    for (const { id } of runs) if (!about.has(id)) about.set(id, details(id));
    show(panel, evaluation(runs, x, label, wanted), training(runs, x, label, wanted), runs.map(({ id }) => about.get(id)));
  }

  /** Return whether a row of an evaluation is that of a task, which has no opponent. */
  const alone = (id, opponent) => opponent === "self" && state.runs.some((run) => run.id === id && run.is_task);

  function evaluation(runs, x, label, wanted) {
    const rows = runs.flatMap((run) => run.evals.rows.map((row) => [run, row]));
    const names = unique(rows.flatMap(([, row]) => Object.keys(row).filter((n) => `${n}_low` in row && `${n}_high` in row)));
    const lines = unique(rows.map(([run, row]) => JSON.stringify([run.id, row.opponent, row.part ?? ""]))).map((text) => JSON.parse(text));
    const several = runs.length > 1, folder = commonFolder(runs.map((run) => run.id));
    const named = lines.map(([id, opponent, part], colour) => ({
      id, opponent, part, colour, name: [several ? id.slice(folder) : "", alone(id, opponent) ? "" : opponent, part].filter(Boolean).join(", ") || "trained policies",
    }));
    const legend = el("div", { class: "row" }, named.map((line) => el("span", {}, el("span", { class: `swatch k${line.colour % COLOURS}` }), line.name)));
    const failures = named.map((line) => {
      const last = rows.findLast(([run, row]) => run.id === line.id && row.opponent === line.opponent && (row.part ?? "") === line.part)[1];
      return last.failed > 0 ? el("p", { class: "bad" }, `${line.name}: ${failed(last)} at step ${last.step}`) : null;
    });
    const charts = names.filter(wanted).map((name) => el("div", { class: "card" }, el("h3", {}, words(name)), explained(help.evaluation, name),
      chart(named.map((line) => ({ ...line, points: rows
        .filter(([run, row]) => run.id === line.id && row.opponent === line.opponent
          && (row.part ?? "") === line.part && typeof row[name] === "number")
        .map(([run, row]) => [x(run, row), row[name], row[`${name}_low`] ?? row[name], row[`${name}_high`] ?? row[name]]) })), label)));
    if (!charts.length && !failures.some(Boolean)) return [];
    return [el("h2", {}, "Evaluation"), legend, failures, el("div", { class: "grid" }, charts)];
  }

  function training(runs, x, label, wanted) {
    const several = runs.length > 1;
    const names = unique(runs.flatMap((run) => run.metrics.rows.slice(-50).concat(run.metrics.rows.slice(0, 50)).flatMap(Object.keys)))
      .filter((name) => name !== "step" && name !== "time" && wanted(name));
    const events = runs.flatMap((run) => run.events.rows.map((row) => ({ run, ...row })));
    const marks = events.map((event) => ({ x: x(event.run, event), kind: event.kind,
      title: `${several ? `${event.run.id}: ` : ""}${event.kind}, step ${event.step}: ${event.message}` }));
    const order = (name) => { const at = FIRST.findIndex((start) => name.startsWith(start)); return at < 0 ? FIRST.length : at; };
    const one = (name) => el("div", { class: "card" }, el("h3", {}, words(name)), explained(help.training, name),
      chart(runs.map((run) => ({ name: run.id, colour: run.colour, smooth: controls.smooth,
        points: run.metrics.rows.filter((row) => typeof row[name] === "number").map((row) => [x(run, row), row[name]]) })), label, marks));
    const first = names.filter((name) => order(name) < FIRST.length || controls.search).sort((a, b) => order(a) - order(b));
    const rest = names.filter((name) => !first.includes(name)).sort();
    if (!names.length) {
      const words = !state.chosen.length ? "Choose one or more runs." : controls.search ? "No metric matches." : "No step has been logged yet.";
      return [el("p", { class: "quiet" }, words)];
    }
    const more = folded(`${rest.length} more curves`, () => el("div", { class: "grid" }, rest.map(one)), unfolded);
    more.addEventListener("toggle", () => { unfolded = more.open; });
    return [el("h2", {}, "Training"), el("div", { class: "grid" }, first.map(one)), rest.length ? more : null];
  }

  draw();
  pick();
  refresh();
  const node = el("div", {}, picker, el("div", { class: "row" }, search, time, el("label", {}, smooth, " smooth")), panel);
  return { node, runsChanged: pick, close() { stopped = true; clearTimeout(timer); } };
}

function details(id) {
  return folded(`${id}: config and matches`, () => {
    const box = el("div", { class: "quiet" }, "Loading …");
    get("run", { run: id }).then(
      ({ config, evaluation }) => show(box, matches(evaluation), el("pre", {}, JSON.stringify(config, null, 2))),
      (error) => show(box, el("p", { class: "bad" }, error.message)));
    return box;
  });
}

function matches(found) {
  if (!Array.isArray(found?.matrix) || !Array.isArray(found.names)) return null;
  const { names, matrix, elo } = found;
  return el("div", { class: "scroll" }, el("table", {},
    el("tr", {}, el("th"), names.map((name) => el("th", {}, name)), elo ? el("th", {}, "Elo") : null),
    matrix.map((row, i) => el("tr", {}, el("td", {}, names[i]), row.map((value, j) => el("td", {}, elo && i === j ? "–" : number(value))),
      elo ? el("td", {}, number(elo[names[i]])) : null))));
}

/** Return the length of the folders that all ids start with. */
function commonFolder(ids) {
  const parts = ids[0]?.split("/").slice(0, -1) ?? [];
  const differs = parts.findIndex((_, i) => ids.some((id) => !id.startsWith(parts.slice(0, i + 1).join("/") + "/")));
  return parts.slice(0, differs < 0 ? parts.length : differs).reduce((length, part) => length + part.length + 1, 0);
}

/** Describe the failed episodes of an evaluation by reason. */
function failed(row) {
  const reasons = Object.keys(row).filter((name) => name.startsWith("failed/")).map((name) => `${name.slice(7)}: ${row[name]}`);
  return `${row.failed} of ${row.games} episodes failed (${reasons.join(", ")})`;
}

/** Return the explanation of a metric, with or without the name of a policy at its end. */
function explained(known, name) {
  for (const candidate of [name, name.split("/").slice(0, -1).join("/")]) {
    for (const [pattern, text] of Object.entries(known)) {
      const expression = pattern.split("*").map((part) => part.replace(/[^\w\s]/g, "\\$&")).join("[^/]+");
      if (new RegExp(`^${expression}$`).test(candidate)) return el("p", { class: "help" }, text.replaceAll("`", ""));
    }
  }
  return null;
}

const unique = (items) => [...new Set(items)];
