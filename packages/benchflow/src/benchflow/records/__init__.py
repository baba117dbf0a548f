"""What a rollout leaves on disk."""

from .files import write_inputs, write_rollout, write_text
from .identity import new_job_name, new_rollout_id
from .record import RolloutRecord

__all__ = [
    "RolloutRecord",
    "new_job_name",
    "new_rollout_id",
    "write_inputs",
    "write_rollout",
    "write_text",
]
