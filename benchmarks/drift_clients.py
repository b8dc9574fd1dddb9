"""Agents of five frameworks that exchange random messages, for `benchmarks.drift`.

    python benchmarks/drift_clients.py < settings.json      # with OPENAI_BASE_URL and OPENAI_API_KEY of a session

Several agents take turns at random, each in its own conversation, which only grows. The settings are `framework` (a
name in TALKS), `model`, `agents`, `turns` (maximum number of calls), `tools`, `stream` and `seed`. The last line of the
output is {"conversations": …}, the number of conversations after an ideal merge of all calls. This is a standalone
file, because each framework needs its own environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from typing import Any

WORDS = ["ab", "abba", " a  b ", "7 * 6 = 42", "naïve", "漢字", "line\nbreak", "<|im_end|>", "{}", '"quoted"', "…"]
SYSTEM = "You are agent {}. Answer briefly."


def words(rng: random.Random) -> str:
    """Return a text that is difficult to tokenize."""
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 4)))


def add(a: int, b: int) -> str:
    """Adds two numbers."""  # noqa: D401 (a tool description that models read)
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
    """Use OpenAI's SDK with a hand-written tool loop."""
    from openai import OpenAI

    # Without them it reads OPENAI_BASE_URL and OPENAI_API_KEY.
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
            request = dict(model=settings["model"], messages=chat, **more)
            if settings["stream"]:
                message = _joined(client.chat.completions.create(stream=True, **request))
            else:
                message = client.chat.completions.create(**request).choices[0].message.model_dump(exclude_none=True)
            chat.append(message)
            if not message.get("tool_calls"):
                break
            for call in message["tool_calls"]:
                chat.append({"role": "tool", "tool_call_id": call["id"], "content": "3"})
    return len(spoken)


def _joined(stream) -> dict[str, Any]:
    """Return the message of a stream."""
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
    """Use AutoGen's assistants, each with its memory."""
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
    # An assistant that calls tools makes several requests. The server counts them.
    for _ in range(settings["turns"]):
        number = rng.randrange(len(agents))
        spoken.add(number)
        await agents[number].run(task=words(rng))
    await client.close()
    return len(spoken)


# ---------------------------------------------------------------------------------------------------------- langgraph


def talk_langgraph(settings: dict[str, Any]) -> int:
    """Use a LangGraph graph of a model and its tools, with one thread per agent."""
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


# --------------------------------------------------------------------------------------------------------- llamaindex


async def talk_llamaindex(settings: dict[str, Any]) -> int:
    """Use LlamaIndex agents with a memory each, or plain chat engines without tools."""
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.chat_engine import SimpleChatEngine
    from llama_index.core.memory import Memory
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(  # does not read OPENAI_BASE_URL
        model=settings["model"], api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"],
        is_chat_model=True, is_function_calling_model=True, context_window=1 << 16,
    )  # fmt: skip
    rng, spoken, prompts = random.Random(settings["seed"]), set(), map(SYSTEM.format, range(settings["agents"]))
    if settings["tools"]:
        tools = [FunctionTool.from_defaults(add)]
        agents = [FunctionAgent(llm=llm, tools=tools, system_prompt=p, streaming=settings["stream"]) for p in prompts]
        memories = [Memory.from_defaults(token_limit=1 << 15) for _ in agents]
    else:
        agents = [SimpleChatEngine.from_defaults(llm=llm, system_prompt=prompt) for prompt in prompts]
    for _ in range(settings["turns"]):
        number = rng.randrange(len(agents))
        spoken.add(number)
        if settings["tools"]:
            await agents[number].run(user_msg=words(rng), memory=memories[number])
        elif settings["stream"]:
            answer = await agents[number].astream_chat(words(rng))
            async for _ in answer.async_response_gen():
                pass
        else:
            await agents[number].achat(words(rng))
    return len(spoken)


# ---------------------------------------------------------------------------------------------------------------- ag2


async def talk_ag2(settings: dict[str, Any]) -> int:
    """Use AG2's agents, each of which continues its last reply."""
    from ag2 import Agent, tool
    from ag2.config import OpenAIConfig

    config = OpenAIConfig(model=settings["model"], streaming=settings["stream"])  # reads both variables
    tools = [tool(add)] if settings["tools"] else []
    agents: list[Any] = [
        Agent(f"agent_{i}", prompt=SYSTEM.format(i), config=config, tools=tools) for i in range(settings["agents"])
    ]
    rng, spoken = random.Random(settings["seed"]), set()
    for _ in range(settings["turns"]):
        number = rng.randrange(len(agents))
        spoken.add(number)
        agents[number] = await agents[number].ask(words(rng))
    return len(spoken)


TALKS = {
    "openai": talk_openai, "autogen": talk_autogen, "langgraph": talk_langgraph, "llamaindex": talk_llamaindex,
    "ag2": talk_ag2,
}  # fmt: skip


def main() -> None:
    """Run the conversations according to the settings on stdin."""
    settings = json.loads(sys.stdin.readline())
    run = TALKS[settings["framework"]]
    spoken = asyncio.run(run(settings)) if asyncio.iscoroutinefunction(run) else run(settings)
    print(json.dumps({"conversations": spoken}))


if __name__ == "__main__":
    main()
