"""Judges: both orders, ties, nonsense, the cache, rankings, reports, and rewards from verdicts."""

import asyncio
import json
import math

import pytest

from envs.tasks.data import DataError
from envs.tasks.judges import (
    ChatClient,
    Comparison,
    GroupReward,
    Judge,
    LanguageJudge,
    ReferenceReward,
    RuleJudge,
    ScoreJudge,
    Verdict,
    VerdictCache,
    report,
)
from envs.tasks.judges.__main__ import compare_all, read_rows
from envs.tasks.judges.__main__ import main as write_pairs
from envs.tasks.judges.judge import BadVerdict
from envs.tasks.judges.kinds import read_ranking, read_verdict
from envs.tasks.judges.report import preferences
from envs.tasks.scorer_client import ScorerUnavailable

pytestmark = pytest.mark.quick


class Scripted:
    """A model whose reply to messages is a function of the last one; counts its calls."""

    def __init__(self, reply):
        self.reply, self.prompts = reply, []

    async def __call__(self, messages):
        self.prompts.append(messages[-1]["content"])
        return self.reply(messages[-1]["content"])


def by_text(good):
    """A fair model: the answer that contains `good` is better, wherever it is."""

    def reply(prompt):
        a, b = (part.split("Answer B:")[0] for part in prompt.split("Answer A:")[1:]), prompt.split("Answer B:")[1]
        return "Verdict: A" if good in next(a) else "Verdict: B" if good in b else "Verdict: tie"

    return Scripted(reply)


def compare(judge, first, second, **settings):
    return asyncio.run(judge.compare("What is 2 + 2?", first, second, **settings))


# --------------------------------------------------------------------------------------------------------- comparisons


def test_a_fair_judge_prefers_the_same_text_in_both_orders():
    model = by_text("4")
    assert compare(LanguageJudge(model), "4", "5") == Verdict(1.0, forward=1.0, backward=0.0)
    assert compare(LanguageJudge(model), "5", "4") == Verdict(0.0, forward=0.0, backward=1.0)
    assert len(model.prompts) == 4 and "What is 2 + 2?" in model.prompts[0]


def test_a_verdict_that_changes_with_the_order_is_a_tie():
    verdict = compare(LanguageJudge(Scripted(lambda _: "Verdict: A")), "4", "5")
    assert verdict.p == 0.5 and verdict.flipped and verdict.failed == 0


def test_a_tie_in_one_order_leaves_half_of_the_preference():
    assert Verdict.of(1.0, 0.5).p == 0.75 and not Verdict.of(1.0, 0.5).flipped


@pytest.mark.parametrize(("first", "second", "p"), [("4", " 4\n", 0.5), ("", " ", 0.5), ("", "4", 0.0), ("4", "", 1.0)])
def test_equal_and_empty_texts_are_not_asked_about(first, second, p):
    model = by_text("4")
    assert compare(LanguageJudge(model), first, second) == Verdict(p)
    assert not model.prompts


def test_nonsense_is_counted_and_one_good_answer_is_enough():
    nothing = compare(LanguageJudge(Scripted(lambda _: "I like both!")), "4", "5")
    assert nothing == Verdict(0.5, failed=2)
    half = compare(LanguageJudge(Scripted(lambda prompt: "Verdict: A" if "A:\n4" in prompt else "")), "4", "5")
    assert half == Verdict(1.0, failed=1, forward=1.0)


def test_an_unknown_criterion_is_an_error():
    with pytest.raises(ValueError, match="criterion is 'beauty', but must be one of: fairness, coherence"):
        compare(LanguageJudge(by_text("4")), "4", "5", criterion="beauty")


@pytest.mark.parametrize(
    ("reply", "p"),
    [
        ("Verdict: A", 1.0), ("verdict - b.", 0.0), ("**Verdict:** tie", 0.5), ("B", 0.0), (" (A) ", 1.0),
        ("I was told to write Verdict: A or Verdict: B.\nVerdict: B", 0.0),
    ],
)  # fmt: skip
def test_reading_verdicts(reply, p):
    assert read_verdict(reply) == p


@pytest.mark.parametrize("reply", ["", "A good question", "Verdict: C", "Verdict: Absolutely", "AB"])
def test_replies_without_a_verdict(reply):
    with pytest.raises(BadVerdict, match="must reply with a verdict"):
        read_verdict(reply)


def test_a_rule_and_a_reward_model_are_asked_once():
    rule = RuleJudge(lambda prompt, text: float(text == "4"))
    assert compare(rule, "4", "5").p == 1.0 and compare(rule, "6", "5").p == 0.5
    assert compare(RuleJudge(lambda *_: math.nan), "4", "5") == Verdict(0.5, failed=2)

    class Scores:
        calls = 0

        async def score(self, chats):
            self.calls += 1
            return [{"4": 0.9, "5": 0.2}[chat[-1]["content"]] for chat in chats]

    scores = Scores()
    # The log-odds are log 9 and -log 4, so the odds of the pair are 36.
    assert compare(ScoreJudge(scores), "4", "5").p == pytest.approx(36 / 37)
    assert scores.calls == 1


# --------------------------------------------------------------------------------------------------------------- cache


def test_answers_are_asked_for_once_per_judge_and_version(tmp_path):
    path = tmp_path / "cache" / "verdicts.jsonl"
    model = by_text("4")
    for version, calls in (("1", 2), ("1", 2), ("2", 4)):
        judge = LanguageJudge(model, version=version, cache=VerdictCache(path))
        assert compare(judge, "4", "5").p == 1.0
        assert len(model.prompts) == calls
    compare(LanguageJudge(model, name="other", version="1", cache=VerdictCache(path)), "4", "5")
    compare(LanguageJudge(model, version="1", cache=VerdictCache(path)), "4", "5", criterion="relevance")
    assert len(model.prompts) == 8
    assert len(VerdictCache(path)) == 8


def test_a_cache_that_was_cut_off_is_repaired(tmp_path):
    path = tmp_path / "verdicts.jsonl"
    model = by_text("4")
    compare(LanguageJudge(model, cache=VerdictCache(path)), "4", "5")
    path.write_bytes(path.read_bytes()[:-10])
    for _ in range(2):
        assert compare(LanguageJudge(model, cache=VerdictCache(path)), "4", "5").p == 1.0
    assert len(model.prompts) == 3, "one answer was lost, and it was stored again"


def test_nonsense_is_not_stored(tmp_path):
    cache = VerdictCache(tmp_path / "verdicts.jsonl")
    compare(LanguageJudge(Scripted(lambda _: "hm"), cache=cache), "4", "5")
    assert len(cache) == 0


# ------------------------------------------------------------------------------------------------------------ rankings


def test_a_ranking_of_pairs():
    rule = RuleJudge(lambda prompt, text: len(text))
    assert asyncio.run(rule.rank("", ["aa", "a", "aaa"])) == [0.5, 0.0, 1.0]
    assert asyncio.run(rule.rank("", ["a"])) == [0.5]


def test_a_listwise_ranking_in_both_directions():
    """A model that always ranks the first one last changes nothing but the places of the two outer texts."""
    texts = ["one", "two", "three"]
    fair = Scripted(lambda prompt: "Ranking: A > B > C" if prompt.index("one") < prompt.index("three") else "C > B > A")
    judge = LanguageJudge(fair, listwise=True)
    assert asyncio.run(judge.rank("", texts)) == [1.0, 0.5, 0.0]
    assert len(fair.prompts) == 2
    blind = LanguageJudge(Scripted(lambda _: "Ranking: A > B > C"), listwise=True)
    assert asyncio.run(blind.rank("", texts)) == [0.5, 0.5, 0.5]
    silent = LanguageJudge(Scripted(lambda _: "B is fine"), listwise=True)
    assert asyncio.run(silent.rank("", texts)) == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("reply", ["Ranking: A > A > B", "A > B", "Ranking: A > B > D", ""])
def test_replies_without_a_ranking(reply):
    with pytest.raises(BadVerdict, match="must order A, B, C"):
        read_ranking(reply, "ABC")


# ------------------------------------------------------------------------------------------------------------- reports


def comparisons(judge, pairs, **more):
    return [Comparison(a, b, compare(judge, a, b), truth=float(len(a) > len(b)), **more) for a, b in pairs]


def test_the_report_of_a_judge_by_position():
    always_first = LanguageJudge(Scripted(lambda _: "Verdict: A"))
    measured = report(comparisons(always_first, [("aa", "b"), ("c", "dd")]))
    assert measured["position_bias"] == 0.5 and measured["flipped"] == measured["ties"] == 1.0
    assert measured["agreement"] == 0.5 and "length_bias" not in measured and "self_preference" not in measured


def test_the_report_of_a_judge_that_likes_long_texts():
    longer = RuleJudge(lambda prompt, text: len(text))
    shorter_is_right = [
        Comparison(a, b, compare(longer, a, b), truth=float(len(a) < len(b))) for a, b in [("aaa", "b"), ("c", "dd")]
    ]
    measured = report(shorter_is_right)
    assert measured["agreement"] == 0.0 and measured["length_bias"] == 1.0 and measured["position_bias"] == 0.0


def test_self_preference_is_more_than_the_rule_explains():
    mine = RuleJudge(lambda prompt, text: "mine" in text)
    pairs = [("mine 1", "x"), ("y", "mine 2")]
    rows = [
        Comparison(
            a, b, compare(mine, a, b), truth=1.0,
            first_author="judge" if "mine" in a else "x", second_author="judge" if "mine" in b else "x",
        )
        for a, b in pairs
    ]  # fmt: skip
    assert report(rows, author="judge")["self_preference"] == 1.0 - 0.5


def test_failures_are_reported():
    measured = report(comparisons(LanguageJudge(Scripted(lambda _: "?")), [("aa", "b"), ("a", "a")]))
    assert measured["failed"] == 1.0 and measured["ties"] == 1.0 and measured["pairs"] == 2.0
    assert report([]) == {"pairs": 0.0}


# ------------------------------------------------------------------------------------------------------------- rewards


def test_rewards_from_verdicts():
    rule = RuleJudge(lambda prompt, text: len(text))
    reward = ReferenceReward(rule, column="answer")
    assert asyncio.run(reward(prompt="", completion="aaa", answer="aa")) == 1.0
    with pytest.raises(ValueError, match="no text in the column 'answer'"):
        asyncio.run(reward(prompt="", completion="aaa", other="aa"))
    assert asyncio.run(GroupReward(rule)(prompts=["", ""], completions=["a", "aa"])) == [0.0, 1.0]


def test_a_client_of_an_endpoint(tmp_path):
    """The messages arrive, the reply is returned, and a response without one is an error."""
    seen = []

    async def serve(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length:")[1].split("\r\n")[0])
        seen.append((head.split(" ")[1], json.loads(await reader.readexactly(length))))
        body = json.dumps({"choices": [{"message": {"content": "Verdict: B"}}]} if len(seen) < 3 else {}).encode()
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = ChatClient.parse(f"http://127.0.0.1:{port}/v1#judge", deadline=5.0)
        async with server:
            verdict = await LanguageJudge(client).compare("Q", "x", "y")
            with pytest.raises(Exception, match="returned no reply"):
                await client([{"role": "user", "content": "x"}])
        return verdict

    assert asyncio.run(main()).flipped
    assert seen[0][0] == "/v1/chat/completions" and seen[0][1]["model"] == "judge"


def test_an_endpoint_that_is_down_fails_the_comparison():
    client = ChatClient.parse("http://127.0.0.1:9/v1#judge", deadline=0.3)
    with pytest.raises(ScorerUnavailable, match="did not respond within 0.3 s"):
        compare(LanguageJudge(client), "4", "5")
    with pytest.raises(ValueError, match="must be http://HOST:PORT/v1#MODEL"):
        ChatClient.parse("http://127.0.0.1:9/v1")


def test_a_judge_must_implement_prefer():
    with pytest.raises(NotImplementedError):
        compare(Judge("nobody"), "4", "5")


# --------------------------------------------------------------------------------------------------------------- pairs


def test_pairs_are_written_by_labels(tmp_path, capsys):
    """A header, a question with a duplicate and an empty completion, and one without different labels."""
    rows = [
        {"format": 1, "questions": 2},
        {
            "messages": [{"role": "user", "content": "2 + 2?"}],
            "answers": [{"text": t, "right": t == "4"} for t in ("5", "4", "5", "", "6")],
        },
        {"messages": [{"role": "user", "content": "1 + 1?"}], "answers": [{"text": "3", "right": False}]},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert write_pairs([str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")]) == 0
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(pair["chosen"], pair["rejected"]) for pair in written] == [("4", "5"), ("4", "6")]
    assert written[0]["prompt"] == [{"role": "user", "content": "2 + 2?"}]
    assert "wrote 2 pairs" in capsys.readouterr().out
    assert write_pairs([str(tmp_path / "nothing.jsonl"), str(tmp_path / "out.jsonl")]) == 1


def test_pairs_are_written_by_a_judge():
    rows = [{"prompt": "2 + 2?", "completions": ["5", "4", "6"]}]
    pairs, comparisons = asyncio.run(compare_all(LanguageJudge(by_text("4")), rows, "correctness", 4))
    assert [(pair["chosen"], pair["rejected"]) for pair in pairs] == [("4", "5"), ("4", "6")]
    assert report(comparisons)["ties"] == pytest.approx(1 / 3), "5 and 6 are equally wrong"
    with pytest.raises(DataError, match="a line has text, but must have messages and answers"):
        asyncio.run(compare_all(None, [{"text": "x"}], "correctness", 4))


def test_episodes_of_two_runs_are_compared_by_author(tmp_path, capsys):
    """The judge wrote the long texts and prefers them, although the rule scores them lower."""

    def episode(id_, text, success, failed=None):
        turns = [{"role": "a", "prompt": f"<|im_start|>user\nQ{id_}<|im_end|>", "text": text},
                 {"role": "b", "prompt": "", "text": "not compared"}]  # fmt: skip
        return {"id": id_, "success": success, "failed": failed, "turns": turns * (text != "none")}

    files = {
        "judge": [episode("1", "a long text", 0.2), episode("2", "another long text", 0.3), episode("3", "none", 0)],
        "other": [episode("1", "short", 0.9), episode("2", "brief", 0.3), episode("3", "x", 0.5, failed="timeout")],
    }
    for name, rows in files.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = read_rows(f"judge={tmp_path}/judge.jsonl,other={tmp_path}/other.jsonl")
    assert [row["prompt"] for row in rows] == ["user Q1", "user Q2"] and rows[0]["authors"] == ["judge", "other"]
    assert rows[0]["completions"] == ["a long text", "short"], "only what the first role wrote"
    longer = RuleJudge(lambda prompt, text: len(text))
    _, comparisons = asyncio.run(compare_all(longer, rows, "correctness", 4))
    measured = report(comparisons, author="judge")
    assert measured["agreement"] == 0.0 and measured["self_preference"] == 1.0 - 0.0
    assert preferences(comparisons) == {"judge": {"1": 1.0, "2": 1.0}, "other": {"1": 0.0, "2": 0.0}}
    sources = f"judge={tmp_path}/judge.jsonl,other={tmp_path}/other.jsonl"
    assert write_pairs([sources, str(tmp_path / "pairs.jsonl"), f"--report={tmp_path}/report.json"]) == 0
    assert "wrote 1 pairs" in capsys.readouterr().out, "the second pair has equal scores"
    assert json.loads((tmp_path / "report.json").read_text())["preferences"]["other"] == {"1": 1.0}


def test_an_author_loses_with_an_empty_completion_which_is_not_a_pair_to_learn_from():
    rows = [{"prompt": "Q", "completions": ["", "fine"], "authors": ["x", "y"], "id": "1"}]
    pairs, comparisons = asyncio.run(compare_all(LanguageJudge(by_text("fine")), rows, "correctness", 4))
    assert pairs == [] and preferences(comparisons) == {"x": {"1": 0.0}, "y": {"1": 1.0}}


def test_scores_and_authors_must_be_as_many_as_completions():
    rows = [{"prompt": "Q", "completions": ["a", "b", "c"], "authors": ["x", "y", "x"], "scores": [1, 0, 0]}]
    _, comparisons = asyncio.run(compare_all(None, rows, "correctness", 9))
    assert [(one.first, one.second) for one in comparisons] == [("a", "b")], "b and c are tied, a and c have one author"
    with pytest.raises(DataError, match="a line has 3 completions, but must have as many scores"):
        asyncio.run(compare_all(None, [rows[0] | {"scores": [1]}], "correctness", 9))
