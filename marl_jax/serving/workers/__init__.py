"""Processes that answer HTTP for one that has the models.

wire            messages between the two, as bytes
channel         a socket that carries them, with calls in both directions
remote_sampler  the samplers as a worker sees them
desk            the samplers' side: what a worker asks is given to them
board           numbers that all workers share
forward         requests that belong to another process
spec            what a worker is given when it starts
process         one worker
pool            the process with the models: starts the workers, and ends them
"""
