"""Tasks that play a declared workflow, and workflows written by a policy."""
