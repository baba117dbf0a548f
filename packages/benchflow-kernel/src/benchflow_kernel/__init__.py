"""The rollout lifecycle, the tree, branch, scoring and the registry of BenchFlow."""

from .events import EventCallback, EventLog, EventsRead, read_events
from .registry import GROUPS, Registry, load_path
from .resolve import Planes
from .rollout import (
    CHECKPOINT_FILE,
    CheckpointManifest,
    continue_from,
    read_manifest,
    run_rollout,
    saved_checkpoints,
)
from .scenes import LoweredTurn, lower_scenes
from .tasks import find_tasks, load_task
from .tree import (
    ASK_TOOL,
    TREE_SCHEMA_VERSION,
    TreeFold,
    answer_text,
    ask_arguments,
    credit_of,
    fold,
    inter_advantages,
    step_verdicts,
    trajectories,
    trajectory,
    tree_to_bytes,
    tree_to_json,
    value_of,
    verdict_name,
    verdicts_at,
)
from .users import AutoUser, HumanUser, ScriptedUser, SimulatedUser, make_user

__all__ = [
    "ASK_TOOL",
    "CHECKPOINT_FILE",
    "GROUPS",
    "TREE_SCHEMA_VERSION",
    "AutoUser",
    "CheckpointManifest",
    "EventCallback",
    "EventLog",
    "EventsRead",
    "HumanUser",
    "LoweredTurn",
    "Planes",
    "Registry",
    "ScriptedUser",
    "SimulatedUser",
    "TreeFold",
    "answer_text",
    "ask_arguments",
    "continue_from",
    "credit_of",
    "find_tasks",
    "fold",
    "inter_advantages",
    "load_path",
    "load_task",
    "lower_scenes",
    "make_user",
    "read_events",
    "read_manifest",
    "run_rollout",
    "saved_checkpoints",
    "step_verdicts",
    "trajectories",
    "trajectory",
    "tree_to_bytes",
    "tree_to_json",
    "value_of",
    "verdict_name",
    "verdicts_at",
]
