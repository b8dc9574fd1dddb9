"""A server with a scripted sampler and one session, to be killed.

    python -m tests.marl_jax.serving.serving_run FOLDER

Writes its address and the session's key to FOLDER/address.json once it answers.
"""

import asyncio
import json
import sys
from pathlib import Path

from marl_jax.serving.http.server import in_thread
from marl_jax.serving.openai.endpoint import Endpoint
from marl_jax.serving.sessions.traces import TraceFile
from tests.marl_jax.tiny_serving import Parrot, served


def main(folder: Path) -> None:
    endpoint = Endpoint(served(Parrot(delay=0.001)), traces=TraceFile(folder / "traces.jsonl"))
    session = asyncio.run(endpoint.sessions.open(seed=1))
    with in_thread(endpoint.application()) as url:
        part = folder / "address.part"
        part.write_text(json.dumps({"url": url, "key": session.key, "session": session.id}))
        part.rename(folder / "address.json")
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
