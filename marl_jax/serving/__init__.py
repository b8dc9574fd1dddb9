"""What runs behind HTTP: the basics of every server here, the reward server and the OpenAI-compatible endpoint.

http, guard, keys, errors, prometheus           applications behind keys and limits
server, http_protocol                           running them
workers, peer                                   with several processes for HTTP
rewards                                         the reward server
endpoint, admin                                 routes of the OpenAI-compatible endpoint
protocol, choices, streams, text                what its clients send and get
prompts, tool_calls, json_output                messages as token ids; tools; JSON schemas
calls, sessions, histories, conversations       answers, and rollouts that are exact to the token
traces                                          sessions on disk
remote, remote_bot                              models behind such endpoints as players
"""
