"""LangGraph team: a planner, then a worker and a critic until the critic accepts.

planner -> worker -> critic -> end
             ^---------'        (at most ROUNDS times)

pip install -e ".[langgraph]"
python launch.py --config=experiments/agent_program.py:langgraph_team+qwen2.5-0.5b
"""

import json
import re
import sys
from typing import Any, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

ROUNDS = 2
PLANNER = "Say in one sentence how to compute this."
WORKER = "You follow the plan. End with the number."
CRITIC = "Is the last number right? Begin with yes or no."


class State(TypedDict):
    """State of the graph, with the conversations of worker and critic."""

    question: str
    plan: str
    work: list[dict[str, str]]
    review: list[dict[str, str]]
    rounds: int


def last_number(text: str) -> float | None:
    """Return the last number in a text."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    return float(numbers[-1]) if numbers else None


def say(model: str, messages: list[dict[str, str]], text: str) -> list[dict[str, str]]:
    """Return the conversation with a user message and the completion of a model appended."""
    messages = [*messages, {"role": "user", "content": text}]
    reply = ChatOpenAI(model=model).invoke(messages)  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    return [*messages, {"role": "assistant", "content": reply.content}]


def plan(state: State) -> dict[str, Any]:
    """Run the planner."""
    return {"plan": say("planner", [{"role": "system", "content": PLANNER}], state["question"])[-1]["content"]}


def work(state: State) -> dict[str, Any]:
    """Run the worker with the plan, or with the review of the critic."""
    if not state["work"]:
        opening = [{"role": "system", "content": WORKER}]
        return {"work": say("worker", opening, f"{state['question']}\nPlan: {state['plan']}")}
    return {"work": say("worker", state["work"], f"The critic says: {state['review'][-1]['content']}")}


def review(state: State) -> dict[str, Any]:
    """Run the critic."""
    done = state["work"][-1]["content"]
    opening = state["review"] or [{"role": "system", "content": f"{CRITIC}\n{state['question']}"}]
    return {"review": say("critic", opening, done), "rounds": state["rounds"] + 1}


def after_review(state: State) -> str:
    """Return the node after the critic."""
    accepted = state["review"][-1]["content"].strip().lower().startswith("yes")
    return END if accepted or state["rounds"] >= ROUNDS else "work"


def graph():
    """Build the compiled graph."""
    built = StateGraph(State)
    for name, node in (("plan", plan), ("work", work), ("review", review)):
        built.add_node(name, node)
    for one, next_ in ((START, "plan"), ("plan", "work"), ("work", "review")):
        built.add_edge(one, next_)
    built.add_conditional_edges("review", after_review, ["work", END])
    return built.compile()


def main() -> None:
    """Run one episode.

    All roles are rewarded for a correct answer, and the critic also for a correct judgement.
    """
    example = json.loads(sys.stdin.readline())
    start = {"question": example["question"], "plan": "", "work": [], "review": [], "rounds": 0}
    state = graph().invoke(start)
    answer = last_number(state["work"][-1]["content"])
    right = answer is not None and answer == last_number(str(example["answer"]))
    accepted = state["review"][-1]["content"].strip().lower().startswith("yes")
    print(json.dumps({
        "reward": float(right) + 0.1 * (answer is not None), "rewards": {"critic": 0.2 * (accepted == right)},
        "success": float(right), "answer": None if answer is None else str(answer),
        "metrics": {"rounds": float(state["rounds"]), "judged_right": float(accepted == right)},
    }))  # fmt: skip


if __name__ == "__main__":
    main()
