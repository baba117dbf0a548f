"""The rollout tree, as a pure fold of the event log, and its views."""

from typing import TYPE_CHECKING

from benchflow_contracts.lazy_names import lazy_names

from .credit import answer_weights, credit_of, inter_advantages, value_of, values_below
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

if TYPE_CHECKING:
    from .divergence import Divergence, DivergenceKind, first_divergence
    from .env_diff import EnvDiff, RowChange, TableDiff, diff_states

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
    "answer_weights",
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

_HOMES = {
    **dict.fromkeys(("Divergence", "DivergenceKind", "first_divergence"), "divergence"),
    **dict.fromkeys(("EnvDiff", "RowChange", "TableDiff", "diff_states"), "env_diff"),
}
"""The modules that most rollouts do not use. They are imported on first use."""

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
