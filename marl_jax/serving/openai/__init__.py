"""OpenAI-compatible API: requests, prompts, tool calls and completions."""
