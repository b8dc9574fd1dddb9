"""The config of a run: its fields, what each accepts, and how a command line changes them."""
