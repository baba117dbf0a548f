"""Tasks of Inspect as tasks of BenchFlow: the adapter, and the reward that runs their scorers."""

from .adapter import InspectAdapter
from .reward import InspectReward, inspect_rewards

__all__ = ["InspectAdapter", "InspectReward", "inspect_rewards"]
