"""The rollout lifecycle, the tree, branch, scoring and the registry of BenchFlow."""
