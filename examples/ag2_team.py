r"""AG2 team: solver and verifier compare their numbers until they agree.

    pip install "ag2[openai]>=1.2,<2"
    python launch.py --config=experiments/agent_program.py:ag2_team+per_role+qwen2.5-0.5b

Every reply continues its agent's conversation (`reply.ask`). `--rounds` sets how long they talk, and `--solver` and
`--verifier` set their system prompts, for models with a short context.
"""

import argparse
import asyncio
import json
import re
import sys

from ag2 import Agent, AgentReply
from ag2.config import OpenAIConfig

SOLVER = "You solve the problem. End with the number."
VERIFIER = "You solve the problem yourself and compare. End with your number."


def last_number(text: str | None) -> float | None:
    """Return the last number in a text."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", (text or "").replace(",", ""))
    return float(numbers[-1]) if numbers else None


def agreed(solved: AgentReply, checked: AgentReply) -> bool:
    """Return whether two replies have the same number."""
    return last_number(checked.body) is not None and last_number(checked.body) == last_number(solved.body)


async def main(args: argparse.Namespace) -> None:
    """Run one episode."""
    example = json.loads(sys.stdin.readline())
    # OpenAIConfig reads OPENAI_BASE_URL and OPENAI_API_KEY.
    solver, verifier = (
        Agent(role, prompt=prompt, config=OpenAIConfig(model=role))
        for role, prompt in (("solver", args.solver), ("verifier", args.verifier))
    )
    solved = await solver.ask(example["question"])
    checked = await verifier.ask(f"{example['question']}\n{solved.body}")
    rounds = 1
    while not agreed(solved, checked) and rounds < args.rounds:
        solved = await solved.ask(checked.body or "")
        checked = await checked.ask(solved.body or "")
        rounds += 1
    answer = last_number(checked.body)
    right = answer is not None and answer == last_number(str(example["answer"]))
    print(json.dumps({
        "reward": float(right) + 0.1 * (answer is not None), "success": float(right),
        "answer": None if answer is None else str(answer),
        "metrics": {"agreed": float(agreed(solved, checked)), "rounds": float(rounds)},
    }))  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--solver", default=SOLVER)
    parser.add_argument("--verifier", default=VERIFIER)
    asyncio.run(main(parser.parse_args()))
