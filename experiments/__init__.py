"""One file per experiment; `get_config(variant)` returns its ConfigDict."""
