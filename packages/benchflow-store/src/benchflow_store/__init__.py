"""The files of a rollout: one writer and one reader."""

from .files import write_inputs, write_result, write_rollout, write_text
from .identity import new_job_name, new_rollout_id
from .model_calls import MODEL_DIR, read_model_calls
from .record import RanWith, RolloutRecord
from .rewards import rewards_jsonl
from .rollout_summary import RolloutSummary, find_rollouts
from .saved_checkpoints import (
    SavedCheckpoint,
    checkpoints_below,
    checkpoints_of,
    delete_checkpoints,
    export_checkpoint,
    find_checkpoint,
    read_trusted_manifest,
)
from .sealed_config import has_own_seal, seal_config
from .stored_rollout import (
    StoredConfig,
    StoredRollout,
    read_finished_rollouts,
    read_record,
    read_records,
)
from .views import (
    EventKind,
    EventLine,
    LineKind,
    NodeView,
    PathNode,
    RolloutProgress,
    Segment,
    StepLine,
    TrajectoryView,
    TreeView,
    event_lines,
    step_lines,
    step_title,
)

__all__ = [
    "MODEL_DIR",
    "EventKind",
    "EventLine",
    "LineKind",
    "NodeView",
    "PathNode",
    "RanWith",
    "RolloutProgress",
    "RolloutRecord",
    "RolloutSummary",
    "SavedCheckpoint",
    "Segment",
    "StepLine",
    "StoredConfig",
    "StoredRollout",
    "TrajectoryView",
    "TreeView",
    "checkpoints_below",
    "checkpoints_of",
    "delete_checkpoints",
    "event_lines",
    "export_checkpoint",
    "find_checkpoint",
    "find_rollouts",
    "has_own_seal",
    "new_job_name",
    "new_rollout_id",
    "read_finished_rollouts",
    "read_model_calls",
    "read_record",
    "read_records",
    "read_trusted_manifest",
    "rewards_jsonl",
    "seal_config",
    "step_lines",
    "step_title",
    "write_inputs",
    "write_result",
    "write_rollout",
    "write_text",
]
