"""Conversations over several turns: inputs, samples, and agreement of sampler and learner."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games import registry as games
from envs.games.bots import make_bot
from marl_jax.agents.seating import Seating
from marl_jax.algorithms.ppo import compute_advantages
from marl_jax.algorithms.sft import HELD_OUT_KEY, Imitation
from marl_jax.algorithms.sft_config import SFTSettings
from marl_jax.rollouts.base import GameParts, RunParts
from marl_jax.rollouts.conversations.threads import History
from marl_jax.rollouts.demonstrations import Demonstrations
from marl_jax.rollouts.groups import GroupRollout
from marl_jax.rollouts.opponents import Opponents, Sections
from marl_jax.rollouts.tree import TreeRollout
from tests.conftest import nightly_cases
from tests.marl_jax import tiny_play
from tests.marl_jax.rollouts.conversations import tiny_history as tiny
from tests.marl_jax.rollouts.tiny_refill import Refilled
from tests.marl_jax.tiny_play import TOKENIZER
from tests.models.tiny_models import quick_jit

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_compilation")]

TIC_TAC_TOE = tiny.game("tic_tac_toe")


def sections():
    """Self-play, a historical opponent, a bot."""
    return Sections(2, historical=3, bots=((make_bot(TIC_TAC_TOE, "minimax"), 2),))


CASES = {
    "opponents": lambda: tiny.rollout(
        "tic_tac_toe", 7, 9, history_turns=3, symmetry=games.symmetry(TIC_TAC_TOE),
        opponents=Opponents(sections(), pool_size=2),
    ),
    "hanabi": lambda: tiny.rollout("hanabi", 3, 40),
    "names behind a prefix, adapters": lambda: tiny.rollout(
        "tic_tac_toe", 3, 9, style="full", lora=2, long_names=True, history_turns=4
    ),
    "free text": lambda: tiny.rollout("tic_tac_toe", 4, 8, free=4),
    "tree of names, adapters": lambda: tiny.rollout(
        "short_path", 2, 12, TreeRollout, candidates=3, long_names=True, lora=2, critic="none"
    ),
    "groups": lambda: tiny.rollout("short_path", 4, 32, GroupRollout, candidates=2, critic="none"),
}  # fmt: skip


@functools.cache
def program(case):
    return tiny.Program(CASES[case]())


@functools.cache
def played(case):
    """One rollout and what the reference says of it."""
    roll = program(case).roll
    snapshot = None if roll.opponents is None else roll.team.snapshot(tiny.params_of(roll, seed=5))
    found = program(case)(snapshot=snapshot)
    return found, tiny.tell(found)


@pytest.mark.nightly_for("opponents", "hanabi")
@pytest.mark.parametrize(
    "case", nightly_cases(CASES, "names behind a prefix, adapters", "tree of names, adapters", "groups")
)
def test_sampler_and_learner_agree_on_what_was_read(case):
    """`tell` has compared every token that an answer sees with the game's own texts."""
    found, told = played(case)
    assert (told.recorded & ~told.fresh).sum() >= 10 and told.fresh.sum() >= 4
    check(found, told)


def counted(found, told):
    """bool [N, S]: answers to be learned from, had they room."""
    return told.exists & ~told.opposite & ~told.bot & ~told.waits & in_rollout(found)


def in_rollout(found):
    """bool [N, S]: answers of turns that do not only look ahead."""
    samples = found.samples
    if samples.completion_at is None:
        return samples.completion_lengths > 0
    turns = np.arange(len(found.moves))[:, None] < found.roll.turns
    return np.asarray(samples.from_time(jnp.broadcast_to(turns, samples.completion_at.shape)))


def check(found, told):
    """Log-probabilities, values, weights, and how much is said to be missing."""
    samples = found.samples
    own = told.recorded & (~told.opposite | told.bot)
    mask, first = (np.asarray(x) * np.asarray(samples.to_tokens(own)) for x in (samples.mask(), samples.first()))
    scores = found.scores()
    np.testing.assert_allclose(scores.logps * mask, samples.logps * mask, atol=1e-5)
    np.testing.assert_allclose(scores.values * first, samples.values * first, atol=1e-5)
    assert np.std(samples.logps[mask > 0]) > 1e-3
    counts = counted(found, told)
    np.testing.assert_array_equal(samples.loss_weights, counts & told.recorded)
    metrics = quick_jit(found.roll.metrics)(samples, found.finished)
    assert float(metrics["dropped_completions"]) == pytest.approx(1 - told.recorded[counts].mean())


@pytest.mark.nightly_for("tree of names, adapters", "groups")
@pytest.mark.parametrize("case", ["tree of names, adapters", "groups"])
def test_refill_replaces_the_conversations_of_whole_games(case):
    rollout = dataclasses.replace(program(case).roll, refill=2)
    refilled = Refilled(rollout, [program(case)(key=key).samples for key in (1, 2, 3)])
    counts = [refilled.check(seed, share) for seed in range(8) for share in (0.02, 0.1)]
    assert sum(replaced for _, replaced in counts) > 2 and len({played for played, _ in counts}) > 1
    assert refilled.check(0, share=0.0) == (3, 0)


def test_what_was_sampled_stays_as_it_was():
    """Bytes that are no text: tokenised again, they would be others. `tell` has compared the ids."""
    found, told = played("free text")
    samples = found.samples
    later = np.roll(told.recorded & ~told.fresh, -1, axis=1)  # the answers that a later one sees
    lengths, said = samples.completion_lengths[later], samples.targets.reshape(*later.shape, -1)[later]
    assert len(np.unique(samples.completion_lengths[told.exists])) > 1, "some stop early"
    tiny_play.assert_truncated(samples, found.roll.team.backbones[0].policy)
    said = [ids[:n].tolist() for ids, n in zip(said, lengths, strict=True)]
    assert sum(TOKENIZER.encode(TOKENIZER.decode(ids)) != ids for ids in said) > 3


def prepared_by(policy, weights, samples, **changes):
    """The samples with PPO's advantages."""
    return quick_jit(lambda w, s: compute_advantages(policy, w, s, tiny_play.ppo(**changes))[0])(weights, samples)


@pytest.mark.nightly
def test_a_conversation_of_one_answer_is_a_prompt_that_stands_alone():
    samples, prepared = [], []
    for context in ("turn", "history"):
        roll = tiny.rollout("tic_tac_toe", 4, 9, context=context, history_turns=1)
        made, params = roll.team.backbones[0].policy, tiny.params_of(roll)
        found, _, _ = jax.jit(roll.play)(params, roll.fresh_games(jax.random.key(0)), jax.random.key(1), None)
        samples.append(found)
        prepared.append(prepared_by(made, params["main"], found))
    alone, talk = samples
    assert (talk.context_len[talk.completion_lengths > 0] > 0).all() and talk.n == 8 and alone.n == 44
    names = (
        "context_len",
        "action",
        "completion_lengths",
        "seat",
        "episode",
        "turn",
        "ends",
        "loss_weights",
        "rewards",
        "legal",
    )
    for name in names:
        np.testing.assert_array_equal(*(s.in_time(getattr(s, name)) for s in samples), err_msg=name)
    for name in ("logps", "values", "targets"):
        values = [s.in_time(s.at_first(getattr(s, name))) for s in samples]
        np.testing.assert_allclose(*values, atol=1e-5, err_msg=name)
    for name in ("advantages", "returns"):
        values = [p.in_time(p.at_first(getattr(p, name)))[:9] for p in prepared]
        np.testing.assert_allclose(*values, atol=1e-5, err_msg=name)
        assert np.std(values[0]) > 1e-2
    # The tokens, too: of turn t of game b those before its answer.
    lengths, tokens = (
        np.asarray(talk.in_time(talk.context_len)),
        np.asarray(alone.tokens).reshape(*alone.completion_at.shape, -1),
    )
    at = np.asarray(talk.in_time(talk.logits_index))
    for (t, b), number in np.ndenumerate(np.asarray(talk.completion_at)):
        row, n = number // talk.n_completions, lengths[t, b]
        np.testing.assert_array_equal(talk.tokens[row, at[t, b] + 1 - n : at[t, b] + 1], tokens[t, b, :n])


def test_every_rollout_begins_conversations_again():
    found, _ = played("free text")
    assert (found.after.turn > 0).any(), "games go on"
    again = program("free text")(start=found.after, key=2)
    told = tiny.tell(again)
    assert told.fresh[told.exists[:, 0], 0].all()
    check(again, told)


@pytest.mark.nightly
def test_a_row_without_room_loses_later_answers_and_a_bot_is_not_learned_from():
    roll = tiny.rollout("hanabi", 4, 24, history_tokens=272)
    roll = dataclasses.replace(roll, seating=Seating(((0,), (-1,)), (None, make_bot(roll.game, "random"))))
    found = tiny.Program(roll)()
    told = tiny.tell(found)
    counts = counted(found, told)
    assert found.samples.tokens.shape[1] == 272 and 0.2 < told.recorded[counts].mean() < 0.8
    for row in np.flatnonzero(counts.any(1)):
        lost = np.flatnonzero(told.exists[row] & ~told.recorded[row])
        assert len(lost) and told.recorded[row, : lost[0]].all() and lost[0] > 1
    check(found, told)
    assert found.samples.policy.tolist() == [0, -1] * 4
    # Scored again, only what is there gets another value: advantages stay what they are without that.
    (backbone,), weights = roll.team.backbones, found.params["main"]
    asked = [prepared_by(backbone.policy, weights, found.samples, tis_clip=clip) for clip in (0.0, 2.0)]
    np.testing.assert_array_equal(*(x.loss_weights for x in asked))
    np.testing.assert_allclose(*(x.advantages * x.to_tokens(x.loss_weights) for x in asked), atol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["cache", "events"])
def test_a_conversation_that_does_not_fit_begins_again(what, monkeypatch):
    """Room for less than an implementation would choose: the reference begins again where it is full."""
    if what == "cache":
        monkeypatch.setattr(History, "slots", lambda self, backbone: backbone.prompt_length + self.more_length + 8)
        roll = tiny.rollout("tic_tac_toe", 3, 18)
    else:
        event = tiny.prompt("hanabi").history.event
        monkeypatch.setattr(History, "room", property(lambda self: event.min_length + event.max_length))
        roll = tiny.rollout("hanabi", 3, 20)
    found = tiny.Program(roll)()
    told = tiny.tell(found)
    again = told.fresh & told.exists & (found.samples.turn >= roll.game.n_players)
    again[:, 0] = False
    assert 0 < again.sum() < (told.exists & (found.samples.turn >= roll.game.n_players)).sum()
    if what == "cache":
        check(found, told)


@pytest.mark.nightly
def test_a_historical_opponent_converses_with_its_own_weights():
    roll = tiny.rollout("tic_tac_toe", 6, 8, opponents=Opponents(Sections(1, historical=5), pool_size=2))
    (backbone,) = roll.team.backbones
    greedy = dataclasses.replace(backbone, policy=dataclasses.replace(backbone.policy, temperature=0.0))
    scored = tiny.Program(roll)
    roll = dataclasses.replace(roll, team=dataclasses.replace(roll.team, backbones=(greedy,)))
    params, other = tiny.params_of(roll), tiny.params_of(roll, seed=5)
    found = tiny.Program(roll)(params, snapshot=roll.team.snapshot(other))
    told = tiny.tell(found)
    recorded = told.recorded & in_rollout(found)
    theirs, mine = told.opposite & recorded, ~told.opposite & recorded
    assert (theirs & ~told.fresh).sum() > 5
    best = {name: scored.favorites(weights, found.samples) for name, weights in (("mine", params), ("other", other))}
    np.testing.assert_array_equal(best["other"][theirs], told.played[theirs])
    np.testing.assert_array_equal(best["mine"][mine], told.played[mine])
    assert (best["mine"][theirs] != told.played[theirs]).any()


def demonstrations(**settings):
    """A solver's games."""
    game = tiny.game("short_path")
    return tiny.rollout("short_path", 4, 16, Demonstrations, bot=make_bot(game, "solver"), critic="none", **settings)


@pytest.mark.nightly
def test_demonstrations_are_conversations():
    shown = tiny.Program(demonstrations(noise=0.3))
    found = shown()
    told = tiny.tell(found)
    assert (told.recorded & ~told.fresh).sum() > 10
    samples, names = found.samples, shown.roll.team.backbones[0].policy.answers.written()[0][:, 0]
    np.testing.assert_array_equal(samples.targets[told.exists], names[samples.action[told.exists]])
    strayed = samples.action != told.played
    assert 0 < strayed[told.exists].sum() < told.exists.sum()
    np.testing.assert_array_equal(samples.loss_weights, counted(found, told) & told.recorded)


@pytest.mark.nightly
def test_how_well_demonstrations_are_imitated():
    """The accuracy is that of the learner's most likely answers in the same conversations."""
    settings = demonstrations()
    fields = [f.name for f in dataclasses.fields(settings) if f.name not in ("bot", "noise", "action_weights")]
    given = {name: getattr(settings, name) for name in fields}
    game = GameParts(settings.game, given, opponents=lambda: None, bot=lambda name: settings.bot)
    made = RunParts(config=None, algo=SFTSettings(noise=0.3), mesh=None, game=game)
    params = tiny.params_of(settings)
    accuracy = Imitation(made)(params).counts["accuracy"]
    unseen = tiny.Program(dataclasses.replace(settings, game=settings.game.held_out()))
    found = unseen(params, unseen.roll.fresh_games(jax.random.key(HELD_OUT_KEY)), HELD_OUT_KEY)
    told = tiny.tell(found)
    counts = counted(found, told)
    assert told.recorded.sum() == told.exists.sum() == accuracy.total == counts.sum()
    best = unseen.favorites(params, found.samples)
    keys = jax.random.split(jax.random.key(0), 64)
    ways = jax.jit(jax.vmap(jax.vmap(settings.bot.act, (None, 0)), (0, None)))
    said = found.samples.in_time(best)[..., None]
    drawn = np.stack([ways(before, keys) for before, *_ in found.moves])
    right = np.any(drawn == said, axis=2)
    assert accuracy.right == right.sum() and 0 < right.sum() < right.size
