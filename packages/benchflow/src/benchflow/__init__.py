"""The environment-and-rollout engine for agentic RL."""
