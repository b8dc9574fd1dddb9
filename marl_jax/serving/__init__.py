"""HTTP servers and clients: the OpenAI-compatible endpoint, the reward server and remote models.

http/        application with keys and limits, server, streams, metrics
openai/      routes of the OpenAI-compatible API: requests, prompts, tool calls, completions
sessions/    rollouts over HTTP that are exact to the token: sessions, conversations, traces
workers/     several processes for HTTP in front of one sampler
rewards      the reward server
remote       models at such endpoints as players and agents
"""
