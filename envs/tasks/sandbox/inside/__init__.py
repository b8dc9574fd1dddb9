"""The part of the sandbox that runs in the worker process.

It uses only the standard library and does not import the rest of the project.
"""
