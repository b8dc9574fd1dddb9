"""Setup script that rejects wheels: marl_jax runs from a clone (`pip install -e .`)."""

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class NoWheel(bdist_wheel):
    """A command that raises an error: a wheel would lack launch.py, docs and scripts."""

    def run(self):
        """Exit with a message about the supported installation."""
        raise SystemExit("marl_jax is installed from a clone: pip install -e .")


setup(cmdclass={"bdist_wheel": NoWheel})
