"""Python API; its names are those of the package `marl_jax`."""
