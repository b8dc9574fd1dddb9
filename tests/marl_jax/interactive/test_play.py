"""Playing in the terminal, with the keyboard and the screen replaced by strings."""

import io
import json

import jax
import jax.numpy as jnp
import pytest

from configs import defaults
from envs.games.bots import UniformBot
from envs.games.registry import make, make_medium, make_text
from envs.games.tic_tac_toe.bots import MinimaxBot
from marl_jax import setup
from marl_jax.errors import RunError
from marl_jax.interactive.game_table import PolicySeat
from marl_jax.interactive.game_terminal import Person, play
from marl_jax.modes.play import main
from marl_jax.rollouts.seated_team import SeatedTeam
from marl_jax.running.checkpoint import Checkpoints
from models import chat, tokenizers
from tests.marl_jax import tiny_play


class First:
    """A bot that takes the first legal action."""

    def __init__(self, game):
        self.game = game

    def act(self, state, key):
        return jnp.argmax(self.game.legal(state)).astype(jnp.int32)


@pytest.fixture(scope="module")
def tic_tac_toe():
    tokenizer = tokenizers.load("bytes")
    game = make("tic_tac_toe")
    return game, make_text(game).compile(tokenizer, chat.chat_parts(tokenizer), context="history")


def at_the_terminal(game, prompt, seats, lines):
    """Play with a user who types `lines` and return (last state, output)."""
    screen = io.StringIO()
    state = play(game, prompt, seats, source=io.StringIO("\n".join(lines) + "\n"), output=screen)
    return state, screen.getvalue()


def test_a_person_wins(tic_tac_toe):
    game, prompt = tic_tac_toe
    state, screen = at_the_terminal(game, prompt, [Person(), First(game)], ["7", "8", "9"])
    assert bool(game.done(state))
    assert "Legal: 1, 2, 3, 4, 5, 6, 7, 8, 9" in screen
    assert "player 0 (you): 7" in screen
    assert "player 1 (First): 1" in screen
    assert " X | X | X" in screen
    assert screen.endswith("player 0 (you) wins.\n")


def test_what_is_no_move_is_asked_again(tic_tac_toe):
    game, prompt = tic_tac_toe
    state, screen = at_the_terminal(game, prompt, [Person(), First(game)], ["5", "", "5", "1", "castle", "quit"])
    assert state is None
    assert "'5' is not legal here." in screen
    assert "'castle' is not an action" in screen


def test_prompt_is_the_models(tic_tac_toe):
    """`prompt` shows the prompt at the first turn, and later the full conversation with the seat's own moves."""
    game, prompt = tic_tac_toe
    _, screen = at_the_terminal(game, prompt, [Person(), First(game)], ["prompt", "5", "prompt", "quit"])
    start = jax.jit(game.reset)(jax.random.key(0))
    first = prompt.opening_text(start, 0)
    assert first in screen
    middle, _ = game.step(start, jnp.int32(4))
    state, _ = game.step(middle, jnp.int32(0))
    events = prompt.event_text(start, 4, middle, 0) + prompt.event_text(middle, 0, state, 0)
    assert first + "5" + prompt.close_text + events + prompt.ask_text(0) in screen


def test_help_drawing_and_end_of_input(tic_tac_toe, tmp_path):
    game, prompt = tic_tac_toe
    file = tmp_path / "a drawing.svg"
    lines = ["help", "legal", "svg", f"svg {file}", f"svg {tmp_path / 'none' / 'x.svg'}"]
    state, screen = at_the_terminal(game, prompt, [Person(), MinimaxBot()], lines)
    assert state is None, "the input ended"
    assert "svg FILE    write the position" in screen
    assert file.read_text().startswith("<svg")
    assert "svg needs a file name" in screen
    assert "No such file or directory" in screen


def test_the_picture_in_the_prompt_is_written(tmp_path):
    game = make("tic_tac_toe")
    tokenizer = tokenizers.load("bytes")
    drawn = make_medium(game)
    prompt = make_text(game).with_media(drawn, ["<|spare0|>" * 9]).compile(tokenizer)
    file = tmp_path / "seen.png"
    _, screen = at_the_terminal(game, prompt, [Person(), First(game)], ["5", "image", f"image {file}", "prompt"])
    assert "image needs a file name" in screen and f"written to {file}" in screen
    assert "`image FILE` writes the picture in this prompt." in screen
    middle, _ = game.step(game.reset(jax.random.key(0)), jnp.int32(4))
    state, _ = game.step(middle, jnp.int32(0))
    assert file.read_bytes() == drawn.file(state, 0)
    text_only = make_text(game).compile(tokenizer)
    _, screen = at_the_terminal(game, text_only, [Person(), First(game)], ["image x.png", "quit"])
    assert "The prompt has no picture" in screen


def test_hanabi_from_a_seat():
    """The user's own hand is hidden, actions are explained, and a game without users is shown in full."""
    game = make("hanabi", preset="very_small")
    prompt = make_text(game).compile(tokenizers.load("bytes"))
    _, screen = at_the_terminal(game, prompt, [Person("ann"), UniformBot(game)], ["quit"])
    assert "player 0  ?? ??" in screen
    assert "(play card 1)" in screen
    state, screen = at_the_terminal(game, prompt, [First(game)] * 2, [])
    assert "??" not in screen
    assert f"Score: {int(game.score(state))}." in screen


def test_an_answer_that_names_no_move_becomes_a_legal_one():
    game, policy = make("tic_tac_toe"), tiny_play.policy(free=3)
    team = tiny_play.team(policy, tiny_play.prompt())
    ready = team.prepare_for_sampling({"main": tiny_play.weights(policy)[0]})
    seat = PolicySeat(game, SeatedTeam(team, tiny_play.seating(0, 0)), ready)
    state = game.step(game.reset(jax.random.key(0)), jnp.int32(4))[0]
    chosen = jax.jit(jax.vmap(lambda key: seat.act(state, key)))(jax.random.split(jax.random.key(1), 16))
    assert set(chosen.tolist()) <= {0, 1, 2, 3, 5, 6, 7, 8} and len(set(chosen.tolist())) > 3


def test_wrong_number_of_seats(tic_tac_toe):
    game, prompt = tic_tac_toe
    with pytest.raises(ValueError, match="tic_tac_toe has 2 seats, but got 1"):
        play(game, prompt, [Person()])


def test_the_checkpoint_of_a_run(tmp_path, capsys):
    """`main` finds the run's checkpoint, lets a user watch, and rejects a seat that does not exist."""
    config = defaults.get_config()
    config.env.update(dict(style="plain", text="brief"))
    config.model.shape.update(tiny_play.SHAPE)
    config.play.seat, config.mesh.data = -1, 1
    made = setup.make(config)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"trained": {"main": made.backbone.weights_at_start()[0]}}, {})
    checkpoints.close()
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    assert bool(made.game.done(main(config, tmp_path)))
    assert f"player 1 ({tmp_path.name}): " in capsys.readouterr().out
    config.play.seat = 2
    with pytest.raises(RunError, match="config.play.seat is 2, but must be from 0 to 1, or -1 to watch"):
        main(config, tmp_path)
