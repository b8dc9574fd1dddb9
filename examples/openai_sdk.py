"""OpenAI SDK agent: solves a problem and then checks itself in the same conversation.

    pip install openai
    python launch.py --config=experiments/agent_program.py:openai_sdk+qwen2.5-0.5b     # train it

It reads an example as JSON from stdin and writes its result as the last line of stdout, so it also runs without
training, with any server:

    echo '{"question": "What is 17 + 4?", "answer": 21}' |
        OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none OPENAI_MODEL=mine python examples/openai_sdk.py
"""

import json
import os
import re
import sys

from openai import OpenAI

SYSTEM = "You compute carefully. End with the number."
CHECK = "Check this, and give the number again."


def last_number(text: str) -> float | None:
    """Return the last number in a text."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    return float(numbers[-1]) if numbers else None


def main() -> None:
    """Run one episode."""
    example = json.loads(sys.stdin.readline())
    client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    messages = [{"role": "system", "content": SYSTEM}]
    answers = []
    for text in (example["question"], CHECK):
        messages.append({"role": "user", "content": text})
        completion = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages)
        reply = completion.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": reply})
        answers.append(last_number(reply))
    right = answers[-1] is not None and answers[-1] == last_number(str(example["answer"]))
    readable = answers[-1] is not None
    print(json.dumps({
        "reward": float(right) + 0.1 * readable, "success": float(right),
        "answer": str(answers[-1]) if readable else None,
        "metrics": {"readable": float(readable), "changed": float(answers[0] != answers[-1])},
    }))  # fmt: skip


if __name__ == "__main__":
    main()
