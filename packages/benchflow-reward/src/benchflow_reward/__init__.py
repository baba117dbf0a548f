"""Verifiers, reward functions, rubrics and judges for BenchFlow."""

from .reward_file import ParsedReward, parse_reward

__all__ = ["ParsedReward", "parse_reward"]
