"""Config schema: fields, validation and command-line flags."""
