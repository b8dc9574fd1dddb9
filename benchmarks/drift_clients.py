"""Agents of three frameworks that talk much and say nothing, for `benchmarks.drift`.

    python benchmarks/drift_clients.py < settings.json      # with OPENAI_BASE_URL and OPENAI_API_KEY of a session

Several agents take turns at random, each in a conversation of its own that only grows. The settings are `framework`
(openai, autogen or langgraph), `model`, `agents`, `turns` (calls at most), `tools`, `stream` and `seed`; the last line
of the output is {"conversations": …}, how many an ideal merge would make of all calls. A file by itself, because the
frameworks need environments of their own.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

WORDS = ["ab", "abba", " a  b ", "7 * 6 = 42", "naïve", "漢字", "line\nbreak", "<|im_end|>", "{}", '"quoted"', "…"]
SYSTEM = "You are agent {}. Answer briefly."


def words(rng: random.Random) -> str:
    """A text with everything that tokenisers stumble over."""
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 4)))


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


TOOL = {
    "type": "function",
    "function": {
        "name": "add", "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- openai


def talk_openai(settings: dict[str, Any]) -> int:
    """OpenAI's SDK, with a loop over tools written by hand."""
    from openai import OpenAI

    # Without these two it reads OPENAI_BASE_URL and OPENAI_API_KEY.
    client = OpenAI(base_url=settings.get("url"), api_key=settings.get("key"))
    rng, left = random.Random(settings["seed"]), settings["turns"]
    chats = [[{"role": "system", "content": SYSTEM.format(i)}] for i in range(settings["agents"])]
    more = {"tools": [TOOL]} if settings["tools"] else {}
    spoken = set()
    while left:
        number = rng.randrange(len(chats))
        chat = chats[number]
        spoken.add(number)
        chat.append({"role": "user", "content": words(rng)})
        while left:
            left -= 1
            asked = dict(model=settings["model"], messages=chat, **more)
            if settings["stream"]:
                message = _joined(client.chat.completions.create(stream=True, **asked))
            else:
                message = client.chat.completions.create(**asked).choices[0].message.model_dump(exclude_none=True)
            chat.append(message)
            if not message.get("tool_calls"):
                break
            for call in message["tool_calls"]:
                chat.append({"role": "tool", "tool_call_id": call["id"], "content": "3"})
    return len(spoken)


def _joined(stream) -> dict[str, Any]:
    """The message of a stream."""
    text, calls = "", {}
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                call = calls.setdefault(
                    piece.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                )
                call["id"] += piece.id or ""
                call["function"]["name"] += piece.function.name or ""
                call["function"]["arguments"] += piece.function.arguments or ""
    return {"role": "assistant", "content": text} | ({"tool_calls": list(calls.values())} if calls else {})


# ------------------------------------------------------------------------------------------------------------ autogen


async def talk_autogen(settings: dict[str, Any]) -> int:
    """AutoGen's assistants, each with its memory."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.models import ModelInfo
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    info = ModelInfo(vision=False, function_calling=True, json_output=False, structured_output=False, family="unknown")
    client = OpenAIChatCompletionClient(model=settings["model"], model_info=info)
    agents = [
        AssistantAgent(
            f"agent_{i}", client, system_message=SYSTEM.format(i), tools=[add] if settings["tools"] else None,
            model_client_stream=settings["stream"], max_tool_iterations=3,
        )
        for i in range(settings["agents"])
    ]  # fmt: skip
    rng, spoken = random.Random(settings["seed"]), set()
    # An assistant may ask several times where it calls a tool; its answers are counted where they arrive.
    for _ in range(settings["turns"]):
        number = rng.randrange(len(agents))
        spoken.add(number)
        await agents[number].run(task=words(rng))
    await client.close()
    return len(spoken)


# ---------------------------------------------------------------------------------------------------------- langgraph


def talk_langgraph(settings: dict[str, Any]) -> int:
    """A graph of a model and its tools, whose threads are the agents."""
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    model = ChatOpenAI(model=settings["model"], streaming=settings["stream"])
    tools = [tool(add)] if settings["tools"] else []
    bound = model.bind_tools(tools) if tools else model
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
    graph.add_edge(START, "model")
    if tools:
        graph.add_node("tools", ToolNode(tools))
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
    compiled = graph.compile(checkpointer=InMemorySaver())
    rng, spoken = random.Random(settings["seed"]), set()
    for _ in range(settings["turns"]):
        number = rng.randrange(settings["agents"])
        opening = [] if number in spoken else [{"role": "system", "content": SYSTEM.format(number)}]
        spoken.add(number)
        messages = [*opening, {"role": "user", "content": words(rng)}]
        compiled.invoke({"messages": messages}, {"configurable": {"thread_id": str(number)}})
    return len(spoken)


def main() -> None:
    """Talks as the settings on stdin say."""
    settings = json.loads(sys.stdin.readline())
    if settings["framework"] == "autogen":
        spoken = asyncio.run(talk_autogen(settings))
    else:
        spoken = {"openai": talk_openai, "langgraph": talk_langgraph}[settings["framework"]](settings)
    print(json.dumps({"conversations": spoken}))


if __name__ == "__main__":
    main()
