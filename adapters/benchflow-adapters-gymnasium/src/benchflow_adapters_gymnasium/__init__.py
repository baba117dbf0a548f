"""Gymnasium, in both directions.

`envs` registers `benchflow/Task-v0`: a task of BenchFlow as a `gymnasium.Env`. `world` is the
environment `gymnasium`: an episode of any registered Gymnasium environment in a rollout. Only these
modules import Gymnasium, which the extra `gymnasium` installs.
"""
