"""Finished rollouts in the formats of trainers, and in those of installed exporters."""

from .episode import Shape, episode
from .exporters import load_exporter, write_export
from .inter import with_inter_advantage
from .messages import Message, steps_to_messages
from .publish import publish
from .rows import (
    ExportReport,
    export_trajectories_to_jsonl,
    trajectory_to_verifiers_record,
    write_json_lines,
)
from .trainer import leaf_record, write_trainer_rows

__all__ = [
    "ExportReport",
    "Message",
    "Shape",
    "episode",
    "export_trajectories_to_jsonl",
    "leaf_record",
    "load_exporter",
    "publish",
    "steps_to_messages",
    "trajectory_to_verifiers_record",
    "with_inter_advantage",
    "write_export",
    "write_json_lines",
    "write_trainer_rows",
]
