"""OpenEnv, in both directions.

`server` serves tasks of BenchFlow to OpenEnv's clients, and `sessions` gives them to its harness and
its trainers; both import OpenEnv, which the extra `openenv` installs. `world` is the environment
`openenv`: an episode of an OpenEnv server in a rollout, which needs nothing of OpenEnv's package.
"""
