"""The rollout lifecycle, the tree, branch, scoring and the registry of BenchFlow.

The names below are loaded on first use: a program imports only the modules that it uses.
"""

from typing import TYPE_CHECKING

from benchflow_contracts.lazy_names import lazy_names

if TYPE_CHECKING:
    from .config import (
        AskUserBranch,
        BestOfBranch,
        BranchBudget,
        BranchPolicy,
        CallerBranch,
        Deadlines,
        GroupBranch,
        Keep,
        ModelConfig,
        RolloutConfig,
        RolloutSettings,
        Scene,
        Turn,
        UserConfig,
        ValueBranch,
    )
    from .events import EventCallback, EventLog, EventsRead, read_events, while_log_locked
    from .registry import GROUPS, Registry, load_path
    from .resolve import LoweredTurn, Planes, lower_scenes
    from .rollout import (
        CHECKPOINT_FILE,
        CheckpointManifest,
        continue_from,
        read_manifest,
        run_rollout,
        saved_checkpoints,
        write_tree,
    )
    from .states import read_state
    from .tasks import find_tasks, load_task
    from .tree import (
        ASK_TOOL,
        TREE_SCHEMA_VERSION,
        Divergence,
        DivergenceKind,
        EnvDiff,
        RowChange,
        TableDiff,
        TreeFold,
        answer_text,
        answer_weights,
        ask_arguments,
        credit_of,
        diff_states,
        first_divergence,
        fold,
        inter_advantages,
        node_to_json,
        step_verdicts,
        trajectories,
        trajectory,
        tree_to_bytes,
        tree_to_json,
        value_of,
        values_below,
        verdict_name,
        verdicts_at,
    )
    from .users import AutoUser, HumanUser, ScriptedUser, SimulatedUser, make_user

__all__ = [
    "ASK_TOOL",
    "CHECKPOINT_FILE",
    "GROUPS",
    "TREE_SCHEMA_VERSION",
    "AskUserBranch",
    "AutoUser",
    "BestOfBranch",
    "BranchBudget",
    "BranchPolicy",
    "CallerBranch",
    "CheckpointManifest",
    "Deadlines",
    "Divergence",
    "DivergenceKind",
    "EnvDiff",
    "EventCallback",
    "EventLog",
    "EventsRead",
    "GroupBranch",
    "HumanUser",
    "Keep",
    "LoweredTurn",
    "ModelConfig",
    "Planes",
    "Registry",
    "RolloutConfig",
    "RolloutSettings",
    "RowChange",
    "Scene",
    "ScriptedUser",
    "SimulatedUser",
    "TableDiff",
    "TreeFold",
    "Turn",
    "UserConfig",
    "ValueBranch",
    "answer_text",
    "answer_weights",
    "ask_arguments",
    "continue_from",
    "credit_of",
    "diff_states",
    "find_tasks",
    "first_divergence",
    "fold",
    "inter_advantages",
    "load_path",
    "load_task",
    "lower_scenes",
    "make_user",
    "node_to_json",
    "read_events",
    "read_manifest",
    "read_state",
    "run_rollout",
    "saved_checkpoints",
    "step_verdicts",
    "trajectories",
    "trajectory",
    "tree_to_bytes",
    "tree_to_json",
    "value_of",
    "values_below",
    "verdict_name",
    "verdicts_at",
    "while_log_locked",
    "write_tree",
]

_HOMES = {
    name: module
    for module, names in {
        "config": (
            "AskUserBranch BestOfBranch BranchBudget BranchPolicy CallerBranch Deadlines "
            "GroupBranch Keep ModelConfig RolloutConfig RolloutSettings Scene Turn UserConfig "
            "ValueBranch"
        ),
        "events": "EventCallback EventLog EventsRead read_events while_log_locked",
        "registry": "GROUPS Registry load_path",
        "resolve": "LoweredTurn Planes lower_scenes",
        "rollout": (
            "CHECKPOINT_FILE CheckpointManifest continue_from read_manifest run_rollout "
            "saved_checkpoints write_tree"
        ),
        "states": "read_state",
        "tasks": "find_tasks load_task",
        "tree": (
            "ASK_TOOL TREE_SCHEMA_VERSION Divergence DivergenceKind EnvDiff RowChange "
            "TableDiff TreeFold answer_text answer_weights ask_arguments credit_of diff_states "
            "first_divergence fold inter_advantages node_to_json step_verdicts "
            "trajectories trajectory tree_to_bytes tree_to_json value_of values_below "
            "verdict_name verdicts_at"
        ),
        "users": "AutoUser HumanUser ScriptedUser SimulatedUser make_user",
    }.items()
    for name in names.split()
}
"""The module of each name."""

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
