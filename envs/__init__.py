"""Games (pure rules inside jit) and what stands beside them: bots, drawings, texts.

`envs.registry.make(name, **parameters)` builds a game; `envs.game` states the contract.
"""
