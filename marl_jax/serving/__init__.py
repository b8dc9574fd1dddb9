"""HTTP servers and clients: the OpenAI-compatible endpoint, the reward server and remote models.

http/        application with keys and limits, server, streams and metrics
openai/      routes of the OpenAI-compatible API: requests, prompts, tool calls and completions
sessions/    token-exact rollouts over HTTP: sessions, conversations and traces
workers/     several HTTP processes in front of one sampler
rewards      reward server
remote…      models at OpenAI-compatible endpoints: bots, speakers of tasks, and their limits
"""
