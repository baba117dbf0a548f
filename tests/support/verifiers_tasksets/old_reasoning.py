# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""An environment that verifiers 0.3 ships, with tasks of Reasoning Gym."""

import verifiers as vf


def load_environment() -> vf.Environment:
    return vf.ReasoningGymEnv(gym="chain_sum", num_train_examples=2, num_eval_examples=1, seed=1)
