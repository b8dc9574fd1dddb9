"""A small run of `benchmarks.drift` with each agent framework, in the environment that `make nightly` installs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import framework_python

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {"autogen": "autogen_agentchat", "langgraph": "langgraph", "llamaindex": "llama_index", "ag2": "ag2"}


@pytest.mark.parametrize("framework", PACKAGES)
def test_what_a_framework_samples_is_trained_on_as_it_was_sampled(framework):
    python = framework_python(framework, PACKAGES[framework])
    command = ["--turns=96", f"--frameworks={framework}", f"--python={framework}:{python}", "--processes=2"]
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.drift", *command], cwd=ROOT, capture_output=True, text=True, timeout=1200
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["turns"] >= 64 and (found["drift"], found["extra"], found["rendered"]) == (0, 0, 0), found
