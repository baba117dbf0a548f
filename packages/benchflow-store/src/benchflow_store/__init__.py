"""What a rollout leaves on disk: one writer and one reader of it."""

from .files import write_inputs, write_result, write_rollout, write_text
from .finished import read_finished, read_finished_rollouts
from .identity import new_job_name, new_rollout_id
from .model_calls import MODEL_DIR, read_model_calls
from .record import RanWith, RolloutRecord
from .rewards import rewards_jsonl
from .saved_checkpoints import (
    KeptCheckpoint,
    collect,
    export_checkpoint,
    find_kept,
    kept_below,
    kept_by,
    read_trusted,
)
from .sealed_config import is_ours, sealed

__all__ = [
    "MODEL_DIR",
    "KeptCheckpoint",
    "RanWith",
    "RolloutRecord",
    "collect",
    "export_checkpoint",
    "find_kept",
    "is_ours",
    "kept_below",
    "kept_by",
    "new_job_name",
    "new_rollout_id",
    "read_finished",
    "read_finished_rollouts",
    "read_model_calls",
    "read_trusted",
    "rewards_jsonl",
    "sealed",
    "write_inputs",
    "write_result",
    "write_rollout",
    "write_text",
]
