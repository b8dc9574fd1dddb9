"""The part of the sandbox that runs in the worker: standard library only, started without the rest of the project."""
