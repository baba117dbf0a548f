"""Finished rollouts in the formats of trainers, and of other installed exporters."""

from .episode import Shape, episode
from .exporters import (
    ExportFormat,
    export_formats,
    exporter_with,
    load_exporter,
    publish,
    write_export,
)
from .formats import EpisodeExporter, RowExporter
from .messages import Message, steps_to_messages
from .rows import (
    ExportReport,
    export_trajectories_to_jsonl,
    trajectory_to_verifiers_record,
    write_json_lines,
)
from .samples import group_of, samples_of
from .trainer import leaf_record, read_trainer_rows, with_inter_advantage, write_trainer_rows

__all__ = [
    "EpisodeExporter",
    "ExportFormat",
    "ExportReport",
    "Message",
    "RowExporter",
    "Shape",
    "episode",
    "export_formats",
    "export_trajectories_to_jsonl",
    "exporter_with",
    "group_of",
    "leaf_record",
    "load_exporter",
    "publish",
    "read_trainer_rows",
    "samples_of",
    "steps_to_messages",
    "trajectory_to_verifiers_record",
    "with_inter_advantage",
    "write_export",
    "write_json_lines",
    "write_trainer_rows",
]
