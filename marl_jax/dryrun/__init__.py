"""Compile a run for hardware that is not present: memory, operations and traffic by the compiler's own account."""
