// Conversations of a task's evaluations, with the verdict on every completion.

import { Feed, get } from "./api.js";
import { el, folded, number, select, show, signed, words } from "./dom.js";

const FILTERS = [["all", "all"], ["right", "right"], ["wrong", "wrong"], ["failed", "failed"]];
const LISTED = 300, SNIPPET = 140;

/** Create the view of one run's evaluations. */
export function answers(state) {
  const list = el("div", { class: "list" }), stage = el("div"), node = el("div"), summary = el("p", { class: "quiet" });
  const having = () => state.runs.filter((run) => run.answers.length);
  let feed = null, filter = "all";

  async function begin(id, file) {
    state.run = id;
    feed = new Feed(id, `answers/${file}`, true);
    choices(id, file);
    show(stage, el("p", { class: "quiet" }, "Choose a conversation."));
    show(list, el("p", { class: "quiet" }, "Loading …"));
    const own = feed;
    try {
      await own.update();
      if (own === feed) draw();
    } catch (error) {
      state.note(error.message);
    }
  }

  function draw() {
    const kind = (row) => (row.failed ? "failed" : row.success >= 1 ? "right" : "wrong");
    const rows = feed.rows.filter((row) => filter === "all" || kind(row) === filter);
    const right = feed.rows.filter((row) => kind(row) === "right").length;
    const listed = rows.length > LISTED ? `, first ${LISTED} listed` : "";
    summary.textContent = `${right} of ${feed.rows.length} right; ${rows.length} shown${listed}`;
    const common = commonStart(feed.rows.map((row) => row.prompt));
    show(list, rows.slice(0, LISTED).map((row) => {
      const button = el("button", { "aria-pressed": "false", onclick: () => open(row, button) },
        el("span", { class: kind(row) === "right" ? "good" : "bad" }, { right: "✓ ", wrong: "✗ ", failed: "! " }[kind(row)]),
        el("b", {}, `example ${row.example}${row.sample ? `, sample ${row.sample}` : ""} `),
        el("span", { class: "quiet" }, row.prompt.slice(common, common + SNIPPET)));
      return button;
    }));
  }

  async function open(row, button) {
    for (const other of list.children) other.setAttribute("aria-pressed", String(other === button));
    try {
      show(stage, conversation(await get("row", { run: feed.run, file: feed.file, at: row.at })));
    } catch (error) {
      show(stage, el("p", { class: "bad" }, error.message));
    }
  }

  function choices(id, file) {
    const runs = having(), run = runs.find((one) => one.id === id);
    const newest = (one) => one.answers[one.answers.length - 1];
    show(node, el("div", { class: "row" },
      select("run", runs.map((one) => [one.id, one.id]), id, (chosen) => begin(chosen, newest(runs.find((one) => one.id === chosen)))),
      select("evaluation", run.answers.map((name) => [name, evaluation(name)]), file, (chosen) => begin(id, chosen)),
      select("show", FILTERS, filter, (chosen) => { filter = chosen; draw(); })), summary, el("div", { class: "split" }, list, stage));
  }

  function start() {
    const runs = having();
    if (!runs.length) return show(node, el("p", { class: "quiet" }, "No run has evaluated a task yet."));
    const run = runs.find((one) => one.id === state.run) ?? runs[0];
    begin(run.id, run.answers[run.answers.length - 1]);
  }

  start();
  return { node, runsChanged() { if (!feed && having().length) start(); }, close() {} };
}

/** Show an episode: every turn with its new text, completion, verdict and rewards. */
export function conversation(episode) {
  const verdict = episode.failed ? `failed: ${episode.failed}` : episode.success >= 1 ? "right" : "wrong";
  return el("div", {},
    el("p", {}, el("b", { class: episode.success >= 1 ? "good" : "bad" }, verdict), " ",
      el("span", { class: "quiet" }, `reward ${signed(episode.reward)}`, episode.reason ? `, ended: ${episode.reason}` : "",
        episode.answer ? `, answer: ${text(episode.answer)}` : "")),
    episode.error ? el("p", { class: "bad" }, episode.error) : null,
    episode.turns.map(turn),
    Object.keys(episode.calls ?? {}).length ? folded("verifiers and tools", () => el("pre", {}, JSON.stringify(episode.calls, null, 2))) : null);
}

function turn(one) {
  const verdict = one.verdict ?? {}, rewards = Object.entries(one.rewards ?? {}).filter(([, value]) => value);
  return el("div", { class: "card turn" },
    el("div", { class: "row" }, el("b", {}, one.role),
      el("span", { class: "quiet" }, `turn ${one.turn + 1}`, one.tokens ? `, ${one.tokens} tokens` : "",
        one.finish === "length" ? ", truncated" : ""),
      typeof verdict.right === "number" ? judged(verdict.right) : null,
      el("span", { class: "quiet" }, [verdict.reason, verdict.answer ? `parsed as ${text(verdict.answer)}` : ""]
        .filter(Boolean).map(text).join(", ")),
      rewards.map(([name, value]) => el("span", { class: value > 0 ? "good" : "bad" }, `${name} ${signed(value)}`))),
    folded("prompt", () => el("pre", {}, one.prompt)), el("pre", { class: "said" }, one.text));
}

function judged(right) {
  const verdict = right >= 1 ? "✓ right" : right > 0 ? `right: ${number(right)}` : "✗ wrong";
  return el("b", { class: right >= 1 ? "good" : "bad" }, verdict);
}

/** Return the length of the common prefix of all texts, up to the end of a word: their shared instructions. */
function commonStart(texts) {
  let length = Math.min(...texts.map((one) => one.length));
  for (const one of texts) while (!one.startsWith(texts[0].slice(0, length))) length -= 1;
  return texts.length > 1 ? texts[0].slice(0, length).lastIndexOf(" ") + 1 : 0;
}

const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function evaluation(name) {
  const match = /^(.+)_(\d+)\.jsonl$/.exec(name);
  return match ? `${words(match[1])}, step ${Number(match[2])}` : name;
}
