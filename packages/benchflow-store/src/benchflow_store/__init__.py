"""The files of a rollout: one writer and one reader."""

from .files import write_inputs, write_result, write_rollout, write_text
from .identity import new_job_name, new_rollout_id
from .model_calls import MODEL_DIR, read_model_calls
from .record import RanWith, RolloutRecord
from .rewards import rewards_jsonl
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

__all__ = [
    "MODEL_DIR",
    "RanWith",
    "RolloutRecord",
    "SavedCheckpoint",
    "StoredConfig",
    "StoredRollout",
    "checkpoints_below",
    "checkpoints_of",
    "delete_checkpoints",
    "export_checkpoint",
    "find_checkpoint",
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
    "write_inputs",
    "write_result",
    "write_rollout",
    "write_text",
]
