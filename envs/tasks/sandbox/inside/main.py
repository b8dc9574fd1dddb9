"""Entry point of a worker, started as a script with an empty environment.

The worker communicates with the sandbox over descriptor 0. The first message describes the isolation. Every later
message contains a program with its limits and gets one answer.
"""

import os
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import inside.worker

sys.path.pop()

# Modules that programs import most often, loaded once for all of them.
import bisect  # noqa: F401
import collections  # noqa: F401
import copy  # noqa: F401
import datetime  # noqa: F401
import heapq  # noqa: F401
import itertools  # noqa: F401
import math  # noqa: F401
import operator  # noqa: F401
import random  # noqa: F401
import re  # noqa: F401
import site
import statistics  # noqa: F401
import string  # noqa: F401
import typing  # noqa: F401

# The interpreter does not run `site` itself, which would add installed packages. Programs still use these builtins.
site.setquit()
site.sethelper()

if __name__ == "__main__":
    inside.worker.serve()
