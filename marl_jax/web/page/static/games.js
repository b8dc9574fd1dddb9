// Recorded games of a run, replayed move by move: the position, prompts, completions and rewards.

import { Feed, get } from "./api.js";
import { chart, COLOURS } from "./chart.js";
import { el, folded, picture, seen, select, show, signed } from "./dom.js";

/** Create the view of one run's games. */
export function games(state) {
  const list = el("div", { class: "list" }), stage = el("div"), node = el("div");
  const having = () => state.runs.filter((run) => run.files["games.jsonl"] > 0);
  let feed = null, timer = null, stopped = false, stopReplay = () => {};

  function begin(id) {
    state.run = id;
    feed = new Feed(id, "games.jsonl", true);
    show(stage, el("p", { class: "quiet" }, "Choose a game."));
    refresh();
  }

  async function refresh() {
    clearTimeout(timer);
    const own = feed;
    try {
      if (!document.hidden && await own.update() && own === feed) draw();
    } catch (error) {
      state.note(error.message);
    }
    if (!stopped && own === feed) timer = setTimeout(refresh, 5000);
  }

  function draw() {
    show(list, [...feed.rows].reverse().map((row) => {
      const button = el("button", { "aria-pressed": "false", onclick: () => open(row, button) },
        el("b", {}, `step ${row.step}`), row.source === "eval" ? " evaluation" : "", `: ${row.result} `,
        el("span", { class: "quiet" }, `${row.players.join(", ")} · ${row.moves} ${row.moves === 1 ? "move" : "moves"}`),
        row.errors ? el("span", { class: "bad" }, ` · ${row.errors} invalid`) : null);
      return button;
    }));
  }

  async function open(row, button) {
    for (const other of list.children) other.setAttribute("aria-pressed", String(other === button));
    try {
      const game = await get("row", { run: feed.run, file: feed.file, at: row.at });
      stopReplay();
      const { node: shown, close } = replay(game);
      stopReplay = close;
      show(stage, shown);
    } catch (error) {
      show(stage, el("p", { class: "bad" }, error.message));
    }
  }

  function choices() {
    const runs = having();
    if (!runs.length) return show(node, el("p", { class: "quiet" }, "No run has recorded games yet."));
    const id = runs.some((run) => run.id === state.run) ? state.run : runs[0].id;
    show(node, el("div", { class: "row" }, select("run", runs.map((run) => [run.id, run.id]), id, begin)), el("div", { class: "split" }, list, stage));
    if (feed?.run !== id) begin(id);
  }

  choices();
  return { node, runsChanged() { if (!feed && having().length) choices(); }, close() { stopped = true; clearTimeout(timer); stopReplay(); } };
}

/** Show a game with its controls. Turn 0 is the start, turn n the position after n moves. */
export function replay(game) {
  const moves = game.moves, valued = moves.some((move) => typeof move.value === "number"), drawn = moves.some((move) => move.svg || move.board);
  const position = el("div", { class: "board" }), text = el("div"), count = el("span", { class: "quiet" });
  const slider = el("input", { type: "range", min: 0, max: moves.length, value: 0, "aria-label": "move", oninput: () => go(Number(slider.value)) });
  const rows = moves.map((move, i) => {
    const row = el("tr", { tabindex: 0, onclick: () => go(i + 1), onkeydown: (event) => { if (event.key === "Enter") go(i + 1); } },
      el("td", {}, i + 1), el("td", {}, seat(game, move.player)), el("td", {}, move.action || firstLine(move.answer)),
      move.reward.map((r) => el("td", { class: r > 0 ? "good" : r < 0 ? "bad" : "quiet" }, signed(r))),
      toGo(moves, i).map((r) => el("td", { class: "quiet" }, signed(r))),
      valued ? el("td", {}, typeof move.value === "number" ? signed(move.value) : "–") : null);
    return row;
  });
  let turn = 0, timer = null;

  function go(to) {
    turn = Math.max(0, Math.min(moves.length, to));
    slider.value = turn;
    const move = moves[turn - 1];
    count.textContent = turn ? `move ${turn} of ${moves.length}` : "start";
    show(position, picture(move ? move.svg : game.start_svg, move ? move.board : game.start_board));
    show(text, move ? said(game, move) : null);
    rows.forEach((row, i) => row.classList.toggle("now", i === turn - 1));
    if (turn === moves.length) pause();
  }

  function pause() { clearInterval(timer); timer = null; running.textContent = "▶ replay"; }
  const running = el("button", { onclick: () => {
    if (timer) return pause();
    if (turn === moves.length) go(0);
    timer = setInterval(() => go(turn + 1), 900);
    running.textContent = "❚❚ pause";
  } }, "▶ replay");
  const keys = (event) => {
    if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowLeft") go(turn - 1);
    else if (event.key === "ArrowRight") go(turn + 1);
  };
  document.addEventListener("keydown", keys);

  const seats = game.players.map((_, i) => i);
  const totals = seats.map((i) => ({ name: seat(game, i), colour: i, points: [[0, 0], ...runningSum(moves, i).map((y, t) => [t + 1, y])] }));
  const node = el("div", {},
    el("p", {}, el("b", {}, game.result), " ", el("span", { class: "quiet" }, game.players.map((_, i) => seat(game, i)).join(", "))),
    game.error ? el("p", { class: "bad" }, game.error) : null,
    el("div", { class: "row" }, el("button", { onclick: () => go(turn - 1), "aria-label": "previous move" }, "◀"),
      el("button", { onclick: () => go(turn + 1), "aria-label": "next move" }, "▶"), running, slider, count),
    drawn || game.start_svg ? position : null, text,
    folded("all moves: rewards, rewards to go, and values", () => el("div", {},
      el("div", { class: "scroll" }, el("table", {}, el("tr", {}, el("th", {}, "#"), el("th", {}, "player"), el("th", {}, "move"),
        seats.map((i) => el("th", {}, `reward, ${role(game, i)}`)), seats.map((i) => el("th", {}, `to go, ${role(game, i)}`)),
        valued ? el("th", {}, "value") : null), rows)),
      el("div", { class: "card" }, el("h3", {}, "reward so far"),
        el("div", { class: "row" }, totals.map((line) => el("span", {}, el("span", { class: `swatch k${line.colour % COLOURS}` }), line.name))), chart(totals, (x) => `move ${Math.round(x)}`))), true));
  go(0);
  return { node, close() { pause(); document.removeEventListener("keydown", keys); } };
}

function said(game, move) {
  return el("div", {},
    el("p", {}, seat(game, move.player), ": ", el("b", {}, move.action || "answers"), " ",
      move.reward.some((r) => r) ? el("span", { class: "quiet" }, `reward: ${move.reward.map((r, i) => `${role(game, i)} ${signed(r)}`).join(", ")}`) : null,
      typeof move.value === "number" ? el("span", { class: "quiet" }, ` value ${signed(move.value)}`) : null),
    move.error ? el("p", { class: "bad" }, move.error) : null,
    el("h3", {}, "completion"), el("pre", { class: "said" }, move.answer),
    move.prompt ? folded("prompt", () => el("div", {}, seen(move.image), el("pre", {}, move.prompt)), true) : null);
}

const role = (game, i) => (game.roles?.[i] ?? `player ${i}`).replaceAll("_", " ");

/** Return the role and the player of a seat; players of tasks are named after their roles. */
function seat(game, i) {
  const player = game.players[i] ?? "?";
  return player.startsWith(role(game, i)) ? player : `${role(game, i)} (${player})`;
}

/** Return the rewards of each seat from a move on, including that move. */
function toGo(moves, from) {
  return moves[from].reward.map((_, seat) => moves.slice(from).reduce((sum, move) => sum + (move.reward[seat] ?? 0), 0));
}

function runningSum(moves, seat) {
  let sum = 0;
  return moves.map((move) => (sum += move.reward[seat] ?? 0));
}

function firstLine(text) {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > 60 ? line.slice(0, 60) + " …" : line;
}
