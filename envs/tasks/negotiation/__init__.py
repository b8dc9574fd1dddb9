"""Negotiation over items: two seats with private values divide items by binding offers.

- `contexts.py`: the generator, and readers of DealOrNoDeal and CaSiNo.
- `deals.py`: divisions, their points, the Pareto frontier and envy.
- `strategies.py`: scripted negotiators, and the exact best response to them.
- `messages.py`: actions in messages, and prompts.
- `task.py`: episodes, rewards and metrics.
"""
