r"""LlamaIndex team: a workflow of solver and verifier, until both have the same number.

start -> solve -> check -> stop
           ^--------'        (at most ROUNDS times)

    pip install -r requirements-llamaindex.txt                 # in a separate environment
    python launch.py --config=experiments/agent_program.py:llamaindex_team+per_role+qwen2.5-0.5b \
        --config.task.params.program="ENVIRONMENT/bin/python examples/llamaindex_team.py" \
        --config.task.params.preload=True

`--rounds` sets how long they talk, and `--solver` and `--verifier` set their system prompts, for models with a short
context.
"""

import argparse
import asyncio
import json
import os
import re
import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.workflow import Event, StartEvent, StopEvent, Workflow, step
from llama_index.llms.openai_like import OpenAILike

SOLVER = "You solve the problem. End with the number."
VERIFIER = "You solve the problem yourself and compare. End with your number."


class Proposal(Event):
    """The solver's reply."""

    text: str


class Objection(Event):
    """The verifier's reply with another number."""

    text: str


class Agent:
    """A model with its conversation."""

    def __init__(self, model: str, system: str):
        # OpenAILike does not read OPENAI_BASE_URL.
        self.llm = OpenAILike(
            model=model, api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"],
            is_chat_model=True,
        )  # fmt: skip
        self.messages = [ChatMessage(role="system", content=system)]

    async def say(self, *texts: str) -> str:
        """Send user messages and return the completion."""
        self.messages += [ChatMessage(role="user", content=text) for text in texts]
        reply = (await self.llm.achat(self.messages)).message
        self.messages.append(ChatMessage(role="assistant", content=reply.content))
        return reply.content or ""


class Team(Workflow):
    """Solver and verifier, who talk until they agree."""

    def __init__(self, question: str, solver: Agent, verifier: Agent, rounds: int):
        super().__init__(timeout=None)
        self.question, self.solver, self.verifier = question, solver, verifier
        self.rounds, self.rounds_played = rounds, 0

    @step
    async def solve(self, event: StartEvent | Objection) -> Proposal:
        """Let the solver answer the question, or the verifier's objection."""
        heard = event.text if isinstance(event, Objection) else self.question
        return Proposal(text=await self.solver.say(heard))

    @step
    async def check(self, event: Proposal) -> Objection | StopEvent:
        """Let the verifier compare."""
        opening = () if self.rounds_played else (self.question,)
        reply = await self.verifier.say(*opening, event.text)
        self.rounds_played += 1
        agreed = last_number(reply) is not None and last_number(reply) == last_number(event.text)
        if agreed or self.rounds_played == self.rounds:
            return StopEvent(result=(last_number(reply), agreed))
        return Objection(text=reply)


def last_number(text: str) -> float | None:
    """Return the last number in a text."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    return float(numbers[-1]) if numbers else None


async def main(args: argparse.Namespace) -> None:
    """Run one episode."""
    example = json.loads(sys.stdin.readline())
    agents = Agent("solver", args.solver), Agent("verifier", args.verifier)
    team = Team(example["question"], *agents, args.rounds)
    answer, agreed = await team.run()
    right = answer is not None and answer == last_number(str(example["answer"]))
    print(json.dumps({
        "reward": float(right) + 0.1 * (answer is not None), "success": float(right),
        "answer": None if answer is None else str(answer),
        "metrics": {"agreed": float(agreed), "rounds": float(team.rounds_played)},
    }))  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--solver", default=SOLVER)
    parser.add_argument("--verifier", default=VERIFIER)
    asyncio.run(main(parser.parse_args()))
