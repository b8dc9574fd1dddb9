"""Negotiation: contexts, exact optima against exhaustive oracles, episodes, bad messages and partners."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from envs.tasks.data import from_list
from envs.tasks.data.dataset import DataError
from envs.tasks.negotiation import contexts, deals, messages
from envs.tasks.negotiation.strategies import STRATEGIES, Strategy, best_response
from envs.tasks.negotiation.task import Negotiation
from envs.tasks.partners import Partners
from envs.tasks.scripted import play
from envs.tasks.task import SPLITS
from tests.conftest import examples, shared_data

SMALL = dict(n_train=40, n_validation=8, n_test=8)
CONTEXT = contexts.make_context(["book", "hat"], [2, 1], [[4, 2], [1, 8]], "k") | {"first": 0}
small_contexts = st.builds(
    lambda counts, one, other, first: contexts.make_context(["book", "hat"], counts, [one, other], "k")
    | {"first": first},
    st.tuples(st.integers(1, 2), st.integers(1, 2)), st.tuples(st.integers(0, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 4), st.integers(0, 4)), st.integers(0, 1),
)  # fmt: skip


def negotiate(task, context, *texts, step=0):
    """Play with the learner's messages in order, the last one repeated."""
    sent = iter(texts)
    last = [texts[-1]]

    def answer(seat, chat, k):
        last[0] = next(sent, last[0])
        return last[0]

    return play(task, context, answer, step=step)


# ---------------------------------------------------------------------------------------------------- contexts


def test_generated_contexts_follow_the_rules_and_splits_are_disjoint():
    parts = contexts.load("generated", 0, (2048, 128, 512))
    keys = [{row["key"] for row in parts[part]} for part in SPLITS]
    assert [len(one) for one in keys] == [2048, 128, 512] and not keys[0] & keys[1] | keys[0] & keys[2]
    for row in parts["test"]:
        one, other = row["values"]
        assert 5 <= sum(row["counts"]) <= 7 and deals.most(row, 0) == deals.most(row, 1) == 10
        assert all(map(max, zip(one, other, strict=True))) and any(map(min, zip(one, other, strict=True)))
    assert {row["first"] for row in parts["test"]} == {0, 1}
    assert contexts.generate(1, (8, 1, 1))["train"].fingerprint != contexts.generate(0, (8, 1, 1))["train"].fingerprint
    with pytest.raises(ValueError, match=r"is 2707, but must be at most 2706"):
        contexts.generate(0, (2705, 1, 1))


def test_published_contexts_are_read_and_the_generator_draws_all_of_them(monkeypatch):
    monkeypatch.setenv("MARL_JAX_DATA", str(shared_data("open/casino_test.jsonl.gz").parents[1]))
    known = {row["key"] for row in contexts.everything()}
    parts = contexts.load("dealornodeal", 0, (1, 1, 1))
    assert {part: len(parts[part]) for part in SPLITS} == {"train": 3693, "validation": 389, "test": 390}
    assert all(row["key"] in known for part in SPLITS for row in parts[part])
    camping = contexts.load("casino", 0, (1, 1, 1))
    assert {part: len(camping[part]) for part in SPLITS} == {"train": 900, "validation": 30, "test": 100}
    assert all(deals.most(row, seat) == 36 for row in camping["test"] for seat in (0, 1))
    text = messages.opening(camping["test"][0], 1)
    assert all(reason in text for reason in camping["test"][0]["reasons"][1])


@pytest.mark.parametrize(
    ("source", "record", "match"),
    [
        ("dealornodeal", {"counts": [1, 2], "values": [1, 2, 3], "partner_values": [1, 2, 3]}, "three lists of 3"),
        ("dealornodeal", {"counts": [1, 2, -1], "values": [1, 2, 3], "partner_values": [1, 2, 3]}, "integers >= 0"),
        ("dealornodeal", {"counts": [1, 2, 1], "values": [0, 0, 0], "partner_values": [1, 2, 3]}, "at least one item"),
        ("dealornodeal", {"counts": [99, 99, 9], "values": [1, 1, 1], "partner_values": [1, 2, 3]}, "at most 1000"),
        ("dealornodeal", {"counts": [1, 2, 1], "values": [0, 5, 0]}, "partner_values"),
        ("casino", {"dialogue_id": 1, "agents": {"1": {"value2issue": {"High": "Gold"}}}}, "KeyError"),
    ],
)
def test_invalid_records_are_named_by_their_line(source, record, match):
    with pytest.raises(DataError, match=rf"row 0.*{match}|{match}"):
        contexts.read(source, from_list([record], "records"))


def test_a_missing_file_says_what_to_do(monkeypatch):
    monkeypatch.delenv("MARL_JAX_DATA", raising=False)
    with pytest.raises(DataError, match="task.params.source=generated"):
        contexts.load("dealornodeal", 7, (1, 1, 1))


# ---------------------------------------------------------------------------------------------------- exact optima


@given(small_contexts)
@settings(max_examples=examples(60), deadline=None)
def test_joint_optimum_frontier_and_envy_equal_their_definitions(context):
    counts, (one, other) = context["counts"], context["values"]
    # Each item goes to the seat that values it most.
    assert deals.max_joint(context) == sum(n * max(a, b) for n, a, b in zip(counts, one, other, strict=True))
    every = {bundle: deals.both_points(context, bundle) for bundle in deals.bundles(counts)}
    for bundle, (own, theirs) in every.items():
        dominated = any(a >= own and b >= theirs and (a > own or b > theirs) for a, b in every.values())
        assert deals.is_pareto(context, bundle) != dominated
        assert own + deals.points(one, deals.rest(counts, bundle)) == deals.most(context, 0)
        assert (deals.envy(context, 0, bundle) > 0) == (2 * own < deals.most(context, 0))


def slow_optimum(context, strategy: Strategy, turns, ply=0, table=None, asked=None):
    """Expectimax over complete negotiations, without sharing any results.

    `table` is the partner's open offer to itself, `asked` the learner's open offer to itself.
    """
    counts, (own, values) = context["counts"], context["values"]
    if ply == 2 * turns:
        return 0.0
    if (context["first"] + ply) % 2 == 0:
        options = [slow_optimum(context, strategy, turns, ply + 1, None, offer) for offer in deals.bundles(counts)]
        options += [slow_optimum(context, strategy, turns, ply + 1), 0.0]
        return max(options + ([deals.points(own, deals.rest(counts, table))] if table is not None else []))
    given_ = None if asked is None else deals.rest(counts, asked)
    chance = 0.0 if given_ is None else strategy.chance(values, counts, ply // 2, turns, given_)
    wanted = strategy.offers(values, counts, ply // 2, turns, given_)
    later = sum(slow_optimum(context, strategy, turns, ply + 1, offer) for offer in wanted) / len(wanted)
    return (chance * deals.points(own, asked) if asked is not None else 0.0) + (1 - chance) * later


def optimum(context, name, turns):
    return best_response(tuple(context["counts"]), tuple(map(tuple, context["values"])), name, turns, context["first"])


@given(small_contexts, st.sampled_from(sorted(STRATEGIES)))
@settings(max_examples=examples(50), deadline=None)
def test_the_best_response_equals_an_exhaustive_search_of_all_negotiations(context, name):
    turns = 2 if name == "random" else 3
    assert optimum(context, name, turns) == pytest.approx(slow_optimum(context, STRATEGIES[name], turns))


@given(small_contexts, st.sampled_from(["fair", "greedy", "deceptive"]), st.data())
@settings(max_examples=examples(15), deadline=None)
def test_no_messages_earn_more_than_the_best_response_and_some_earn_it(context, name, data):
    task = Negotiation(partners=(name,), turns=2)
    offers = [f"OFFER {messages.list_items(context['items'], b)}" for b in deals.bundles(context["counts"])]
    texts = data.draw(st.lists(st.sampled_from([*offers, "ACCEPT", "hello"]), min_size=2, max_size=2))
    outcome, _ = negotiate(task, context, *texts)
    best = optimum(context, name, 2)
    assert outcome.metrics["own"] * deals.most(context, 0) <= best + 1e-9
    plans = [(one, two) for one in [*offers, "ACCEPT"] for two in [*offers, "ACCEPT"]]
    assert max(negotiate(task, context, *plan)[0].metrics["own"] for plan in plans) * deals.most(
        context, 0
    ) == pytest.approx(best)


# ---------------------------------------------------------------------------------------------------- episodes


def test_a_deal_is_rewarded_by_the_goal():
    """The partner of CONTEXT gets 8 of 10 points by the hat; the learner gets 8 of 10 by the books."""
    offer = "I would like the books.\nOFFER book=2 hat=0"
    for goal, rewards, success in (("own", (0, 0.8), 0.8), ("adversarial", (0, 0.0), 0.5), ("cooperative", (1, 0), 1)):
        outcome, ask = negotiate(Negotiation(goal=goal), CONTEXT, offer)
        assert outcome.success == success and outcome.reason == "deal"
        assert [(r.rewards.team, r.rewards.agent) for *_, r in ask.replies] == [rewards]
    assert outcome.metrics | {"own": 0.8, "other": 0.8, "joint": 1, "pareto": 1, "envy": 0, "deal": 1, "best": 1} == (
        outcome.metrics
    )


def test_the_learner_accepts_the_partners_offer_and_sees_its_items():
    context, seen = CONTEXT | {"first": 1}, []

    def answer(seat, chat, k):
        seen.append(chat[-1]["content"])
        return "Fine.\nACCEPT"

    outcome, _ = play(Negotiation(), context, answer)
    assert "Offer: you get book=2 hat=0." in seen[0] and "I need the hat most" in seen[0]
    assert "4 points each" in seen[0] and "8 points each" not in seen[0]
    assert outcome.metrics["own"] == 0.8 and outcome.reason == "deal"


def test_the_deceptive_partner_states_false_values():
    text = messages.scripted_text(CONTEXT, STRATEGIES["deceptive"], 0)
    assert text == "I need the book most, and the hat least."
    assert STRATEGIES["deceptive"].stated([5, 0, 2]) == [0, 5, 2] and STRATEGIES["fair"].stated([5, 0]) == [5, 0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the message is empty"),
        ("OFFER book=3 hat=0", "book is 3, but must be between 0 and 2"),
        ("OFFER book=-1", "book is -1, but must be between 0 and 2"),
        (f"OFFER book={'9' * 5000}", "but must be between 0 and 2"),
        ("OFFER gold=1", "there is no 'gold'"),
        ("OFFER book=1 books=1", "book occurs twice"),
        ("OFFER everything", "the offer names no items; write book=N hat=N"),
        ("Yes!\nACCEPT", "there is no offer to accept"),
    ],
)
def test_messages_that_break_the_rules_are_counted_and_cost_a_penalty(text, problem):
    outcome, ask = negotiate(Negotiation(turns=1), CONTEXT, text)
    [(_, _, reply)] = ask.replies
    assert problem in reply.verdict["reason"] and reply.rewards.process == -0.2
    assert outcome.metrics["invalid"] == 1 and outcome.reason == "turns" and outcome.success == 0


def test_a_conversation_that_never_ends_is_ended_by_the_last_message():
    outcome, ask = negotiate(Negotiation(partners=("greedy",), turns=8), CONTEXT, "Let us talk about it.")
    assert outcome.reason == "turns" and len(ask.replies) == 8 and outcome.metrics["invalid"] == 0
    assert negotiate(Negotiation(), CONTEXT, "No.\nQUIT")[0].reason == "quit"


def test_a_message_is_passed_on_without_its_actions_and_not_longer_than_the_limit():
    message = messages.read_message("I insist.\nACCEPT\n" + "x" * 50 + "\n**OFFER** hats=1", ["hat"], [1], False, 20)
    assert (message.kind, message.bundle, message.text) == ("offer", (1,), "I insist.\n\n" + "x" * 9)


def test_two_models_negotiate_and_each_is_rewarded_with_its_points():
    texts = {0: "OFFER book=1 hat=0", 1: "ACCEPT"}
    seen = {}

    def answer(seat, chat, k):
        seen[seat] = chat
        return texts[seat]

    outcome, ask = play(Negotiation(form="model", partners=("greedy",)), CONTEXT, answer)
    assert [(seat, r.rewards.agent) for seat, _, r in ask.replies] == [(0, 0.4), (1, 0.9)]
    assert STRATEGIES["greedy"].prompt in seen[1][0]["content"] and "8 points each" in seen[1][1]["content"]
    assert STRATEGIES["greedy"].prompt not in seen[0][0]["content"] and "best" not in outcome.metrics
    quits = play(Negotiation(form="model"), CONTEXT | {"first": 1}, lambda seat, chat, k: "QUIT")[1]
    assert [seat for seat, *_ in quits.replies] == [1]


# ---------------------------------------------------------------------------------------------------- partners


def test_partners_change_at_the_given_updates_and_are_equal_for_all_episodes_of_an_example():
    partners = Partners(("fair", "greedy"), "switch", (3, 5, 7))
    assert [partners.at(step, {}) for step in range(9)] == ["fair"] * 3 + ["greedy"] * 2 + ["fair"] * 2 + ["greedy"] * 2
    pool = Partners(tuple(STRATEGIES), "pool")
    drawn = [[pool.at(step, row) for row in contexts.load("generated", 0, (40, 8, 8))["train"]] for step in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2] and set(drawn[0]) == set(STRATEGIES)
    task = Negotiation(partners=("random",), **SMALL)
    example = task.examples("train")[0] | {"first": 1}
    seen = []
    for step in (0, 0, 1, 2, 3):
        play(task, example, lambda seat, chat, k: seen.append(chat[-1]["content"]) or "QUIT", step=step)
    assert seen[0] == seen[1] and len(set(seen)) > 1


def test_evaluations_meet_every_partner():
    task = Negotiation(form="model", turns=1, starts="learner", **SMALL).for_evaluation()
    rows = task.examples("test")
    assert [row["partner"] for row in rows] == list(STRATEGIES) * 2 and task.roles == ("learner",) and task.turns == 3
    assert "success_vs_greedy" in negotiate(task, rows[1], "ACCEPT")[0].metrics


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (dict(partners=()), "partners is empty, but must name at least one of: fair, greedy"),
        (dict(partners=("gready",)), "partners contains 'gready', but must contain only: .*greedy"),
        (dict(schedule="often"), "schedule is 'often', but must be one of: fixed, pool"),
        (dict(schedule="switch"), r"switch_at is \(\) with the schedule 'switch', but must be given"),
        (dict(switch_at=(5,)), "and only for it"),
        (dict(schedule="switch", switch_at=(5, 5)), "must be ascending updates >= 1"),
        (dict(turns=0), "turns is 0, but must be between 1 and 8"),
        (dict(goal="win"), "goal is 'win', but must be one of: own"),
    ],
)
def test_wrong_parameters_are_rejected(changes, match):
    with pytest.raises(ValueError, match=match):
        Negotiation(**changes)
