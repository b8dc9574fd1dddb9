r"""AutoGen team: a solver and a verifier talk until they agree on a number.

    pip install -r requirements-autogen.txt                    # in a separate environment
    python launch.py --config=experiments/agent_program.py:autogen_team+per_role+qwen2.5-0.5b \
        --config.task.params.program="ENVIRONMENT/bin/python examples/autogen_team.py" --config.task.params.preload=True

The roles can share a policy or have one each. `--rounds` sets how long they talk, and `--solver` and `--verifier` set
their system prompts, for models with a short context.
"""

import argparse
import asyncio
import json
import re
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import FunctionalTermination, MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = ModelInfo(vision=False, function_calling=False, json_output=False, structured_output=False, family="unknown")
SOLVER = "You solve the problem. End with the number."
VERIFIER = "You solve the problem yourself and compare. End with your number."


def last_number(text: str) -> float | None:
    """Return the last number in a text."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    return float(numbers[-1]) if numbers else None


def agreed(messages) -> bool:
    """Return whether the last two messages of agents have the same number."""
    said = [last_number(message.to_text()) for message in messages if message.source != "user"]
    return len(said) > 1 and said[-1] is not None and said[-1] == said[-2]


async def main(args: argparse.Namespace) -> None:
    """Run one episode."""
    example = json.loads(sys.stdin.readline())
    # The clients read OPENAI_BASE_URL and OPENAI_API_KEY.
    clients = {role: OpenAIChatCompletionClient(model=role, model_info=INFO) for role in ("solver", "verifier")}
    agents = [
        AssistantAgent(role, clients[role], system_message=text)
        for role, text in (("solver", args.solver), ("verifier", args.verifier))
    ]
    heard = []

    def ends(messages) -> bool:
        """Return whether the team ends; gets new messages only."""
        heard.extend(messages)
        return agreed(heard)

    team = RoundRobinGroupChat(
        agents, termination_condition=FunctionalTermination(ends) | MaxMessageTermination(1 + 2 * args.rounds)
    )
    result = await team.run(task=example["question"])
    for client in clients.values():
        await client.close()
    answer = last_number(result.messages[-1].to_text())
    right = answer is not None and answer == last_number(str(example["answer"]))
    print(json.dumps({
        "reward": float(right) + 0.1 * (answer is not None), "success": float(right),
        "answer": None if answer is None else str(answer),
        "metrics": {"agreed": float(agreed(result.messages)), "messages": float(len(result.messages) - 1)},
    }))  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--solver", default=SOLVER)
    parser.add_argument("--verifier", default=VERIFIER)
    asyncio.run(main(parser.parse_args()))
