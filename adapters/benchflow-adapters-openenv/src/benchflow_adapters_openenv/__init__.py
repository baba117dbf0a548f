"""OpenEnv, in both directions.

`server` serves tasks of BenchFlow to OpenEnv's clients. `sessions` gives them to its harness and
its trainers. Both import OpenEnv, which the extra `openenv` installs. `world` is an environment: an
episode of an OpenEnv server in a rollout. It does not need OpenEnv's package.
"""
