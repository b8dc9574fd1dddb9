"""HTTP processes in front of the process that has the models.

serialization    messages between the two as bytes
channel          socket for messages, with calls in both directions
remote_sampler   samplers as a worker sees them
sampler_server   the samplers' side: passes requests of a worker on to them
shared_counters  counters in memory that all workers share
forward          forwarding of requests that belong to another process
spec             settings that a worker receives when it starts
process          one worker
pool             the process with the models: starts and stops the workers
"""
