"""Refuse to build a wheel: marl_jax runs from a clone (`pip install -e .`)."""

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class NoWheel(bdist_wheel):
    """A wheel would lack launch.py, the documentation and the scripts."""

    def run(self):
        """Stop with the supported way to install."""
        raise SystemExit("marl_jax is installed from a clone: pip install -e .")


setup(cmdclass={"bdist_wheel": NoWheel})
