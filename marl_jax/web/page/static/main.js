// The page: shows one view at a time, over one list of runs.

import { answers } from "./answers.js";
import { get } from "./api.js";
import { curves } from "./curves.js";
import { el, show } from "./dom.js";
import { games } from "./games.js";
import { play } from "./play.js";
import { tables } from "./tables.js";

const VIEWS = { curves, games, conversations: answers, tables, play };
const EVERY = 5000;
const status = document.getElementById("status"), main = document.getElementById("view"), tabs = document.getElementById("tabs");
const state = { runs: [], games: [], chosen: [], run: "", note: (text) => { status.textContent = text; } };
let shown = null;

function open() {
  const name = location.hash.slice(1) in VIEWS ? location.hash.slice(1) : state.runs.length ? "curves" : "play";
  show(tabs, Object.keys(VIEWS).map((view) => el("a", { href: `#${view}`, "aria-current": view === name ? "page" : null }, view)));
  shown?.close();
  state.note("");
  shown = VIEWS[name](state);
  show(main, shown.node);
}

async function look() {
  const before = JSON.stringify(state.runs.map((run) => [run.id, run.answers, Object.keys(run.files)]));
  Object.assign(state, await get("runs"));
  const newest = [...state.runs].sort((a, b) => b.changed - a.changed)[0];
  if (!state.chosen.length && newest && !shown) state.chosen = [newest.id];
  return before !== JSON.stringify(state.runs.map((run) => [run.id, run.answers, Object.keys(run.files)]));
}

async function watch() {
  try {
    if (!document.hidden && await look()) shown?.runsChanged();
  } catch (error) {
    state.note(error.message);
  }
  setTimeout(watch, EVERY);
}

look().catch((error) => state.note(error.message)).then(() => {
  open();
  addEventListener("hashchange", open);
  setTimeout(watch, EVERY);
});
