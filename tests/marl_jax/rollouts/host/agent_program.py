"""An agent program for tests, which needs the standard library only: what it does is in its example.

{"do": "talk", "rounds": 2}     solver and verifier in turns, each in one conversation; the reward is in the output
{"do": "fresh", "rounds": 2}    the solver is asked anew each time, without a history, then the verifier once
{"do": "parallel"}              three questions to the solver side by side, then one more
{"do": "choices"}               as many candidates as the run wants, each rewarded over HTTP
and several ways to fail, see `main`
"""

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request


def post(path, body):
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/{path}", json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )  # fmt: skip
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as response:
        return json.load(response)


def ask(messages, model="solver", **more):
    """Asks, and adds the answer to the messages."""
    found = post("chat/completions", {"model": model, "messages": messages, **more})
    messages.append(found["choices"][0]["message"])
    return found


def user(text):
    return {"role": "user", "content": text}


def plain(text):
    """The share of plain characters: something that can be learnt."""
    return sum(ord(c) < 80 for c in text) / max(len(text), 1)


def talk(example):
    solver, verifier = [{"role": "system", "content": "Solve."}], []
    said = example["question"]
    for _ in range(example["rounds"]):
        solver.append(user(said))
        ask(solver)
        verifier.append(user(f"Is this right? {solver[-1]['content']}"))
        ask(verifier, "verifier")
        said = verifier[-1]["content"] or "?"
    right = plain(solver[-1]["content"])
    return {"reward": right, "rewards": {"verifier": 0.25}, "success": right, "answer": "x", "metrics": {"rounds": 1}}


def fresh(example):
    texts = []
    for number in range(example["rounds"]):
        messages = [user(f"{example['question']} {number}")]
        ask(messages)
        texts.append(messages[-1]["content"])
    ask([user("Which? " + " ".join(texts))], "verifier")
    return 1.0


def parallel(example):
    chats = [[user(f"{example['question']} {i}")] for i in range(3)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(ask, chats))
    ask([user("sum up " + "".join(chat[-1]["content"] for chat in chats))])
    return 0.5


def choices(example):
    messages = [user(example["question"])]
    n = int(os.environ["MARL_JAX_CANDIDATES"])
    found = ask(messages, n=n)
    for k, choice in enumerate(found["choices"]):
        reward = plain(choice["message"]["content"])
        post("sessions/current/reward", {"reward": reward, "call": found["id"], "choice": k})


def main():
    example = json.loads(sys.stdin.readline())
    do = example["do"]
    if do in ("talk", "fresh", "parallel", "choices"):
        result = globals()[do](example)
        print("what is before the last line does not matter")
        if result is not None:
            print(json.dumps(result))
        return
    if do == "idle":
        print(1.0)
        return
    ask([user("ab")])
    if do == "crash":
        raise LookupError("the agent is lost")
    if do == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "misspelt":
        print(json.dumps({"rewrad": 1.0}))
    if do == "flood":
        sys.stdout.write("x" * 1_000_000)
    if do == "leaves":  # a child that outlives it, and holds its pipes open
        child = subprocess.Popen(["sleep", "1000"])
        print(json.dumps({"reward": 1.0, "metrics": {"child": child.pid}}))
    if do == "hang":
        child = subprocess.Popen(["sleep", "1000"])
        with open(example["pids"], "w") as file:
            file.write(f"{os.getpid()} {child.pid}\n")
        time.sleep(1000)


if __name__ == "__main__":
    main()
