"""The rollout tree, as a pure fold of the event log, and its views."""

from .credit import credit_of, inter_advantages, value_of, values_below
from .divergence import Divergence, DivergenceKind, first_divergence
from .env_diff import EnvDiff, RowChange, TableDiff, diff_states
from .fold import TreeFold, fold
from .views import (
    ASK_TOOL,
    TREE_SCHEMA_VERSION,
    answer_text,
    ask_arguments,
    node_to_json,
    step_verdicts,
    trajectories,
    trajectory,
    tree_to_bytes,
    tree_to_json,
    verdict_name,
    verdicts_at,
)

__all__ = [
    "ASK_TOOL",
    "TREE_SCHEMA_VERSION",
    "Divergence",
    "DivergenceKind",
    "EnvDiff",
    "RowChange",
    "TableDiff",
    "TreeFold",
    "answer_text",
    "ask_arguments",
    "credit_of",
    "diff_states",
    "first_divergence",
    "fold",
    "inter_advantages",
    "node_to_json",
    "step_verdicts",
    "trajectories",
    "trajectory",
    "tree_to_bytes",
    "tree_to_json",
    "value_of",
    "values_below",
    "verdict_name",
    "verdicts_at",
]
