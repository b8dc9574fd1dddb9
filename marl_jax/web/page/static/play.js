// A game against a bot or a model, played by clicking on the board or on the names of legal actions.

import { get, post } from "./api.js";
import { el, folded, picture, seen, select, show, signed } from "./dom.js";

/** Create the view; a game in progress is kept while another view is open. */
export function play(state) {
  const setup = el("div", { class: "row" }), stage = el("div"), node = el("div", {}, setup, stage);
  const chosen = (state.play ??= { game: "", opponent: "", seat: 0, temperature: 0, id: "" });
  let closed = false;

  function choose() {
    const offer = state.games.find((one) => one.id === chosen.game) ?? state.games[0];
    if (!offer) return;
    chosen.game = offer.id;
    if (!offer.opponents.includes(chosen.opponent)) chosen.opponent = offer.opponents[0] ?? "";
    if (chosen.seat >= offer.roles.length) chosen.seat = 0;
    const seats = offer.roles.map((role, i) => [String(i), role]);
    show(setup,
      select("game", state.games.map((one) => [one.id, one.words]), chosen.game, (id) => { chosen.game = id; choose(); }),
      offer.opponents.length ? select("against", offer.opponents.map((name) => [name, name]), chosen.opponent,
        (name) => { chosen.opponent = name; choose(); }) : null,
      offer.roles.length > 1 ? select("you are", seats, String(chosen.seat), (seat) => { chosen.seat = Number(seat); }) : null,
      /^model: |^trained/.test(chosen.opponent) ? select("temperature", ["0", "0.5", "1"].map((t) => [t, t]),
        String(chosen.temperature), (t) => { chosen.temperature = Number(t); }) : null,
      el("button", { class: "primary", onclick: begin }, "New game"));
  }

  const begin = () => {
    const { game, opponent, seat, temperature } = chosen;
    return ask(() => post("play", { game, opponent, seat, temperature }));
  };
  const move = (game, action) => ask(() => post(`play/${game.id}`, { turn: game.turn, action }));

  async function ask(request) {
    for (const button of node.querySelectorAll("button")) button.disabled = true;
    state.note("thinking …");
    try {
      const game = await request();
      state.note("");
      chosen.id = game.id;
      if (!closed) draw(game);
    } catch (error) {
      state.note(error.message);
      if (!closed && chosen.id) get(`play/${chosen.id}`).then(draw, () => {});
    }
    for (const button of node.querySelectorAll("button")) button.disabled = false;
  }

  function draw(game) {
    const image = picture(game.svg, game.board), board = el("div", { class: "board" }, image);
    const places = game.legal.filter((one) => one.place);
    image.addEventListener("load", () => board.append(...places.map((one) => overlay(one, image, () => move(game, one.action)))));
    show(stage, el("div", { class: "split" },
      el("div", {},
        el("p", {}, el("b", {}, game.game), " ", el("span", { class: "quiet" }, game.seats.join(", "))),
        board,
        el("p", { id: "result", role: "status" },
          game.done ? el("b", {}, game.result.join(" ")) : game.your_turn ? "Your move." : "Waiting …")),
      el("div", {},
        game.legal.length ? el("div", { class: "row", id: "legal" },
          game.legal.map((one) => el("button", { onclick: () => move(game, one.action) }, one.words))) : null,
        el("h3", {}, "Moves"), el("ol", { id: "moves" }, game.moves.map((one) => moved(game, one))),
        game.prompt ? folded("prompt for your seat", () => el("div", {}, seen(game.image), el("pre", {}, game.prompt))) : null)));
  }

  choose();
  if (chosen.id) get(`play/${chosen.id}`).then(draw, () => { chosen.id = ""; });
  return { node, runsChanged() {}, close() { closed = true; } };
}

function overlay({ place: [x, y, width, height], words }, image, onclick) {
  const button = el("button", { "aria-label": words, title: words, onclick });
  const whole = [image.naturalWidth, image.naturalHeight];
  Object.assign(button.style, { left: `${100 * x / whole[0]}%`, top: `${100 * y / whole[1]}%`,
    width: `${100 * width / whole[0]}%`, height: `${100 * height / whole[1]}%` });
  return button;
}

function moved(game, one) {
  const rewards = one.reward.some((r) => r) ? ` (${one.reward.map(signed).join(" ")})` : "";
  return el("li", {}, `${game.seats[one.seat]}: `, el("b", {}, one.words), el("span", { class: "quiet" }, rewards),
    one.error ? el("span", { class: "bad" }, ` ${one.error}`) : null,
    one.answer || one.prompt ? folded("prompt and completion",
      () => el("div", {}, el("pre", {}, one.prompt), el("pre", { class: "said" }, one.answer))) : null);
}
