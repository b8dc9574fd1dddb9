"""AT-GRPO: the five properties of its groups, each of which a broken program fails, and a walk in plain Python.

Most tests play with a policy that has no model, so that they are about the tree and compile in no time.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import defaults
from envs.games.bots import UniformBot, make_bot
from marl_jax.agents import scoring
from marl_jax.agents.answering import Decision
from marl_jax.agents.seating import Seating
from marl_jax.algorithms import at_grpo
from marl_jax.learning.optimizer import make_optimizer
from marl_jax.learning.update import make_update, new_train_state
from marl_jax.rollouts.games import row_keys
from marl_jax.rollouts.tree import TreeRollout
from tests.marl_jax import tiny_play, tiny_puzzle
from tests.marl_jax.algorithms import plain_tree
from tests.marl_jax.tiny_puzzle import ROWS, TURNS, K

pytestmark = pytest.mark.long

GAME, PROMPT = tiny_puzzle.game(), tiny_puzzle.prompt()
KEY = jax.random.key(1)


PROMPTS = tiny_play.team(tiny_puzzle.policy(), PROMPT).prompts


@dataclasses.dataclass(frozen=True)
class NoModel:
    """A team whose answers depend on the prompt, the policy's number and the key, as a model's would."""

    width: int = 1
    critic: str = "none"
    medium: None = None
    message: str = ""
    message_tokens: int = 0

    @property
    def prompts(self):
        return PROMPTS

    def prepare_for_sampling(self, weights):
        return weights

    def playable(self, action, legal, keys):
        return action

    def act(self, ready, tokens, lengths, legal, keys, ids, temperature=None, central=None, candidates=1, media=None):
        mix = jnp.sum(tokens * (1 + jnp.arange(tokens.shape[1]) % 7), axis=1) + 3 * ids
        logits = 2 * jnp.sin(mix[:, None] * (1.0 + jnp.arange(4)))
        logits = jnp.repeat(logits, candidates, axis=0)
        action = jax.vmap(jax.random.categorical)(keys, logits) if temperature is None else jnp.argmax(logits, axis=1)
        logps = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], axis=1)
        answers = jnp.asarray([ord(c) for c in "udlr"])[action][:, None]
        return Decision(action, answers, jnp.ones_like(action), logps, jnp.zeros(action.shape), action < 0)


def program(kind=TreeRollout, seats=(0, 1), bots=(), learns=(True, True), **changes):
    """The program under test, or a broken one."""
    seating = Seating(tuple((policy,) for policy in seats), bots)
    return kind(GAME, NoModel(), ROWS, TURNS, seating, learns, **{"candidates": K} | changes)


@functools.cache
def rolled(kind=TreeRollout, **changes):
    """(games at the start, samples as the learner gets them, finished, games at the end), on the host."""
    roll = program(kind, **changes)
    start = soon_over(roll.fresh_games(jax.random.key(0)))
    return jax.device_get((start, *jax.jit(roll.play)({}, start, KEY)))


def played(kind=TreeRollout, **changes):
    """The same with samples [R, B, …], and those of answers [R, B, K, …]."""
    start, samples, finished, after = rolled(kind, **changes)
    return start, jax.tree.map(lambda x: x.reshape(TURNS, ROWS, *x.shape[1:]), samples), finished, after


def soon_over(games):
    """The games with some walkers next to their goal, the others almost out of moves."""
    inner = games.state.inner
    near = jnp.argmax((inner.distance == 1).reshape(ROWS, -1), axis=1).astype(jnp.int32)
    first = jnp.arange(ROWS) < ROWS // 2
    inner = inner._replace(
        position=jnp.where(first, near, inner.position), turn=jnp.where(first, 0, GAME.game.max_turns - 3)
    )
    return dataclasses.replace(games, state=games.state._replace(inner=inner))


def text(samples, *where):
    assert len(set(samples.context_len[where].tolist())) == 1  # all candidates answer the same prompt
    return bytes(samples.tokens[where][: samples.context_len[where][0]].tolist()).decode()


def row(tree, b):
    return jax.tree.map(lambda x: x[b], tree)


def walked(roll, b, start, samples):
    """The walk of row b in plain Python, with the chances of the program."""

    def keys(t):
        return jax.random.split(jax.random.fold_in(jax.random.fold_in(KEY, t), b), 3)

    def greedy(p):
        tokens = jnp.asarray([list(PROMPT.opening_text(roled(p, start, b), 1).encode())])
        return int(NoModel().act({}, tokens, None, None, None, jnp.array([1]), temperature=0.0).action[0])

    return plain_tree.walk(
        plain_tree.position(row(start.state, b)),
        samples.action[:, b].tolist(),
        fresh=lambda t: plain_tree.position(jax.device_get(roll._fresh(keys(t)[2]).state)),
        luck=lambda t: float(jax.random.uniform(jax.random.fold_in(keys(t)[1], K))),
        budget=GAME.game.max_turns,
        continuation=roll.continuation,
        greedy=greedy if roll.team_term == "lookahead" else None,
    )


def roled(p, start, b):
    """The arrays of a plain position, to write its prompt."""
    size = len(p.distance)
    inner = row(start.state.inner, b)._replace(
        distance=np.array(p.distance, np.int16), position=np.int32(p.at[0] * size + p.at[1]), turn=np.int32(p.turn)
    )
    return row(start.state, b)._replace(
        inner=inner, proposal=np.int32(-1 if p.proposal is None else p.proposal), phase=np.int32(p.player)
    )


# --------------------------------------------------------------------------------------------- the five properties


def check_a(kind=TreeRollout):
    """A group is one episode, agent and turn of one row, and all its answers are candidates of one prompt."""
    samples = rolled(kind)[1]
    assert samples.n_groups == TURNS * ROWS and samples.group_size == K
    members = samples.group * K + samples.member
    assert sorted(members.reshape(-1).tolist()) == list(range(TURNS * ROWS * K))
    rows = np.arange(samples.n)[:, None]
    for group in range(samples.n_groups):
        of_group = samples.group == group
        assert len(np.unique(np.broadcast_to(rows, of_group.shape)[of_group])) == 1  # one row has one prompt
        assert len(np.unique(samples.context_len[of_group])) == 1 and (samples.branch is None or samples.branch_len)
        assert len(np.unique(np.stack([samples.episode, samples.seat, samples.turn])[:, of_group], axis=1).T) == 1


def check_b(kind=TreeRollout):
    """Permuted problems, with their keys, give permuted groups and change nothing else."""
    roll = program(kind)
    games, keys = roll.fresh_games(jax.random.key(0)), row_keys(KEY, ROWS)
    branch = jax.jit(roll.branch)
    order = np.array([3, 0, 5, 1, 4, 2])
    for _ in range(3):
        after, _, (turn, _), _ = branch({}, games, (), keys)
        moved, _, (permuted, _), _ = branch({}, row(games, order), (), keys[order])
        in_groups = lambda t: jax.tree.map(lambda x: x.reshape(ROWS, -1, *x.shape[1:]), t)  # noqa: E731
        jax.tree.map(np.testing.assert_array_equal, row(in_groups(turn), order), in_groups(permuted))
        jax.tree.map(np.testing.assert_array_equal, row(after, order), moved)
        games = after


def check_c(kind=TreeRollout):
    """The executor's prompt says what the planner proposed in this turn, in the candidate that was continued."""
    _, samples, _, _ = played(kind, continuation="first")
    seen = set()
    for t in range(1, TURNS):
        for b in range(ROWS):
            if samples.seat[t, b, 0] == 1:
                proposed = "udlr"[samples.action[t - 1, b, 0]]
                assert text(samples, t, b).endswith(f" {proposed}E:")
                seen.add(proposed)
    assert len(seen) > 2


def check_d(kind=TreeRollout):
    """A candidate's reward is what its own action earns."""
    start, samples, _, _ = played(kind)
    differ = [0, 0]
    for b in range(ROWS):
        for t, group in enumerate(walked(program(), b, start, samples)):
            np.testing.assert_allclose(samples.rewards[t, b], group["rewards"], atol=1e-6)
            differ[group["player"]] += len({round(r[group["player"]], 6) for r in group["rewards"]}) > 1
    assert min(differ) > ROWS  # both agents have groups that tell, many of them


def check_e(kind=TreeRollout):
    """The next prompt is that of the position after the continued candidate."""
    start, samples, _, _ = played(kind)
    for b in range(ROWS):
        for t, group in enumerate(walked(program(), b, start, samples)):
            shown = PROMPT.opening_text(roled(group["position"], start, b), group["player"])
            assert text(samples, t, b) == shown, (t, b)


class MergesProblems(TreeRollout):
    """Breaks (a): all first candidates, then all second ones, so what the learner compares are K problems."""

    def play(self, params, games, key, snapshot=None):
        samples, *rest = super().play(params, games, key, snapshot)
        numbers = jnp.arange(samples.n * K).reshape(K, samples.n).T
        return samples.replace(group=numbers // K, member=numbers % K), *rest


class DrawsBySlot(TreeRollout):
    """Breaks (b): the luck of a candidate comes from its place in the batch."""

    def _each_key(self, keys):
        return row_keys(KEY, keys.shape[0] * K)


class TellsNothing(TreeRollout):
    """Breaks (c): the executor reads the position as it was before the planner spoke."""

    def _look(self, games):
        state = games.state
        silent = dataclasses.replace(games, state=state._replace(proposal=jnp.full_like(state.proposal, -1)))
        return super()._look(silent)


class TriesTheFirst(TreeRollout):
    """Break (d): all candidates of the second agent get the reward of the first one."""

    def _score(self, ready, after, reward, seat, keys):
        paid = super()._score(ready, after, reward, seat, keys)
        first = jnp.repeat(paid.reshape(ROWS, K, 2)[:, 0], K, axis=0)
        return jnp.where(seat[:, None] == 1, first, paid)


class GoesOnElsewhere(TreeRollout):
    """Breaks (e): the game continues from the last candidate, whichever was chosen."""

    def choose(self, scores, key):
        return jnp.int32(K - 1)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "check, broken",
    [
        (check_a, MergesProblems),
        (check_b, DrawsBySlot),
        (check_c, TellsNothing),
        (check_d, TriesTheFirst),
        (check_e, GoesOnElsewhere),
    ],
    ids="abcde",
)
def test_property_holds_and_a_broken_program_fails_it(check, broken):
    check()
    with pytest.raises(AssertionError):
        check(broken)


# ---------------------------------------------------------------------------------------------- the walk in Python


@pytest.mark.nightly_for("{'continuation': 'random'}", "{'team_term': 'lookahead'}", "{'continuation': 'first', *")
@pytest.mark.parametrize(
    "changes",
    [{}, dict(continuation="random"), dict(continuation="first", team_term="lookahead"), dict(team_term="lookahead")],
    ids=str,
)
def test_groups_rewards_and_advantages_are_those_of_a_walk_in_plain_python(changes):
    roll = program(**changes)
    start, samples, _, _ = played(**changes)
    ready, metrics = at_grpo.compute_advantages(None, {}, rolled(**changes)[1], tiny_puzzle.algo())
    advantage = np.asarray(ready.at_first(ready.advantages)).reshape(TURNS, ROWS, K)
    equal = 0
    for b in range(ROWS):
        for t, group in enumerate(walked(roll, b, start, samples)):
            np.testing.assert_array_equal(samples.seat[t, b], group["player"])
            np.testing.assert_allclose(samples.rewards[t, b], group["rewards"], atol=1e-6)
            np.testing.assert_allclose(advantage[t, b], group["advantages"], atol=1e-4)
            informative = any(group["advantages"])
            np.testing.assert_array_equal(ready.loss_weights.reshape(TURNS, ROWS, K)[t, b], float(informative))
            equal += not informative
    assert metrics["groups"] == TURNS * ROWS
    assert float(metrics["zero_std_groups"]) == pytest.approx(equal / (TURNS * ROWS))


def test_the_team_term_by_lookahead_reaches_the_planner():
    immediate, ahead = played()[1], played(team_term="lookahead")[1]
    planner = immediate.seat[0, 0, 0] == 0
    assert planner and (immediate.rewards[0, :, :, 1] == 0).all()
    assert (ahead.rewards[0, :, :, 1] != 0).any()  # the executor's greedy move was made
    np.testing.assert_array_equal(ahead.tokens[0], immediate.tokens[0])


def test_an_agent_after_a_successful_one_still_gets_its_group():
    _, samples, _, _ = played(continuation="first")
    goal = samples.rewards[..., 0] > 0.9  # the planner proposed the move onto the goal
    found = 0
    for t, b in zip(*np.nonzero(goal[: TURNS - 1, :, 0] & (samples.seat[: TURNS - 1, :, 0] == 0)), strict=True):
        assert samples.seat[t + 1, b, 0] == 1 and samples.episode[t + 1, b, 0] == samples.episode[t, b, 0]
        assert (samples.loss_weights[t + 1, b] == 1).all()
        found += 1
    assert found


def test_outcome_only_pays_where_the_candidate_ends_the_game():
    _, samples, finished, _ = played(dense=False)
    assert (samples.rewards[~samples.ends] == 0).all() and (samples.rewards[samples.ends] != 0).any()
    assert finished.ended.any()


def test_finished_games_are_those_that_were_continued():
    _, samples, finished, after = played()
    np.testing.assert_array_equal(after.episode, finished.ended.sum(0))
    episodes = samples.episode[:, :, 0]
    np.testing.assert_array_equal(episodes[1:] - episodes[:-1], finished.ended[:-1])


# -------------------------------------------------------------------------------------------------- with a model


@functools.cache
def with_model(**changes):
    """(policy, weights that are trained, weights that are not, samples) of a rollout with a model."""
    roll = tiny_puzzle.tree(turns=2, **changes)
    policy = roll.team.backbones[0].policy
    trained, frozen = tiny_play.weights(policy)
    samples, _, _ = jax.jit(roll.play)({"main": {**frozen, **trained}}, roll.fresh_games(jax.random.key(0)), KEY)
    return policy, trained, frozen, samples


@pytest.mark.nightly_for("{'lora': 2, 'long_names': True}")
@pytest.mark.parametrize("settings", [{}, dict(lora=2, long_names=True)], ids=str)
def test_k_answers_of_one_prefill_have_the_probabilities_that_the_learner_computes(settings):
    policy, trained, frozen, samples = with_model(**settings)
    scores = jax.jit(functools.partial(scoring.score, policy))({**frozen, **trained}, samples)
    mask = samples.mask()
    np.testing.assert_allclose(scores.logps * mask, samples.logps * mask, atol=1e-5)
    actions = np.asarray(samples.action)
    assert actions.shape[1] == K and (actions != actions[:, :1]).any()
    assert float(jnp.std(samples.to_completions(samples.logps))) > 1e-3
    if settings.get("long_names"):
        assert len(np.unique(samples.completion_lengths)) > 1


def test_the_samples_of_an_agent_change_its_own_adapter_only():
    policy, trained, frozen, samples = with_model(lora=2, long_names=True)
    mine = samples.to_tokens((samples.seat == 0).astype(jnp.float32)) * samples.mask()

    def loss(trained):
        return jnp.sum(scoring.score(policy, {**frozen, **trained}, samples).logps * mine)

    grads = jax.jit(jax.grad(loss))(trained)["adapters"]
    for target in grads.values():
        assert float(jnp.abs(target["b"][:, 0]).max()) > 0
        assert float(jnp.abs(target["b"][:, 1]).max()) == 0


# --------------------------------------------------------------------------------------- roles that do not learn


@pytest.mark.nightly_for("immediate")
@pytest.mark.parametrize("team_term", ["immediate", "lookahead"])
def test_a_role_can_be_a_bot(team_term):
    """The solver makes the moves that the planner proposes: its samples have no weight, and it is who is looked at."""
    bots = (None, make_bot(GAME, "solver"))
    settings = dict(seats=(0, -1), learns=(True,), bots=bots, team_term=team_term)
    _, samples, finished, _ = played(continuation="first", **settings)
    mine = samples.seat == 0
    np.testing.assert_array_equal(samples.loss_weights, mine)
    np.testing.assert_array_equal(samples.policy, np.where(mine[..., 0], 0, -1))
    assert finished.ended.any()
    if team_term == "lookahead":  # the solver follows the proposal, so it earns the predicted reward
        promised = played(continuation="first", **settings | dict(team_term="immediate"))[1].rewards[0, ..., 0]
        np.testing.assert_allclose(samples.rewards[0, ..., 1], promised, atol=1e-6)
        assert (promised != 0).all()
    given = rolled(continuation="first", **settings)[1]
    ready, metrics = at_grpo.compute_advantages(None, {}, given, tiny_puzzle.algo())
    assert int(metrics["groups"]) == TURNS * ROWS // 2
    assert (ready.loss_weights <= given.loss_weights).all() and ready.loss_weights.any()


@pytest.mark.nightly
def test_a_bot_plays_its_own_move_and_not_the_best_of_several():
    bot = dict(seats=(0, -1), learns=(True,), bots=(None, UniformBot(GAME)))
    keys = row_keys(jax.random.key(7), ROWS)
    after_planner = program(continuation="first")
    games = jax.jit(after_planner.branch)({}, after_planner.fresh_games(jax.random.key(0)), (), row_keys(KEY, ROWS))[0]

    def then(**settings):
        return jax.device_get(jax.jit(program(**settings).branch)({}, games, (), keys)[0])

    jax.tree.map(np.testing.assert_array_equal, then(continuation="first", **bot), then(continuation="best", **bot))
    frozen = dict(learns=(True, False))
    jax.tree.map(np.testing.assert_array_equal, then(continuation="first"), then(continuation="best", **frozen))
    first, best = (then(continuation=way).state.inner.position for way in ("first", "best"))
    assert (first != best).any()  # learning policies continue with the best


@pytest.mark.nightly
def test_a_frozen_adapter_stays_as_it_was_to_the_last_bit():
    policy, trained, frozen, samples = with_model(lora=2, long_names=True)
    policy = dataclasses.replace(policy, lora=dataclasses.replace(policy.lora, learns=(False, True)))
    optim = defaults.optimizer()
    optim.update(dict(lr=0.1, weight_decay=0.1, warmup=0))  # decay would move it without any gradient
    optimizer = make_optimizer(optim, 2, 1)
    algo = tiny_puzzle.algo(filter_zero_std_groups=False)
    weights = jnp.broadcast_to((samples.policy == 1)[:, None] * 1.0, samples.loss_weights.shape)
    rows, _ = at_grpo.compute_advantages(policy, {}, samples.replace(loss_weights=weights), algo)
    train_state = new_train_state(trained, frozen, optimizer)
    update = make_update(policy, optimizer, at_grpo.AT_GRPO.objective, algo)
    learnt, _ = jax.jit(update)(train_state, rows, jax.random.key(0))
    for name, old in trained["adapters"].items():
        for part in "ab":
            new = learnt.trained["adapters"][name][part]
            np.testing.assert_array_equal(new[:, 0], old[part][:, 0])
            assert float(jnp.abs(new[:, 1] - old[part][:, 1]).max()) > 0
