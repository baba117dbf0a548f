"""The rollout tree, as a pure fold of the event log, and its views."""

from .ask_tool import ASK_TOOL, answer_text, ask_arguments
from .credit import credit_of, inter_advantages
from .env_diff import EnvDiff, RowChange, TableDiff, diff_states
from .fold import TreeFold, fold
from .step_verdicts import step_verdicts, verdict_name, verdicts_at
from .to_json import TREE_SCHEMA_VERSION, tree_to_bytes, tree_to_json
from .trajectory import trajectories, trajectory
from .value import value_of, values_below

__all__ = [
    "ASK_TOOL",
    "TREE_SCHEMA_VERSION",
    "EnvDiff",
    "RowChange",
    "TableDiff",
    "TreeFold",
    "answer_text",
    "ask_arguments",
    "credit_of",
    "diff_states",
    "fold",
    "inter_advantages",
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
