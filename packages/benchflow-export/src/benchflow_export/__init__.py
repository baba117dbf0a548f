"""Finished rollouts in the formats of trainers, and of other installed exporters."""

from benchflow_contracts import SharedPrefix

from .advantages import with_group_advantages
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
from .group_sources import GroupServer, GroupSource, RequestedGroups, StoredGroups
from .messages import Message, steps_to_messages
from .rollout_groups import (
    ExcludedLeaf,
    ExcludedReason,
    RolloutGroup,
    TrainerOptions,
    group_rollouts,
)
from .rows import (
    ExportReport,
    export_trajectories_to_jsonl,
    trajectory_to_verifiers_record,
    write_json_lines,
)
from .samples import group_of, samples_of
from .token_rows import (
    CreditRow,
    ResponseRow,
    credit_rows,
    fill_rows,
    response_rows,
    version_number,
    version_range,
)
from .trainer import leaf_record, read_trainer_rows, with_inter_advantage, write_trainer_rows

__all__ = [
    "CreditRow",
    "EpisodeExporter",
    "ExcludedLeaf",
    "ExcludedReason",
    "ExportFormat",
    "ExportReport",
    "GroupServer",
    "GroupSource",
    "Message",
    "RequestedGroups",
    "ResponseRow",
    "RolloutGroup",
    "RowExporter",
    "Shape",
    "SharedPrefix",
    "StoredGroups",
    "TrainerOptions",
    "credit_rows",
    "episode",
    "export_formats",
    "export_trajectories_to_jsonl",
    "exporter_with",
    "fill_rows",
    "group_of",
    "group_rollouts",
    "leaf_record",
    "load_exporter",
    "publish",
    "read_trainer_rows",
    "response_rows",
    "samples_of",
    "steps_to_messages",
    "trajectory_to_verifiers_record",
    "version_number",
    "version_range",
    "with_group_advantages",
    "with_inter_advantage",
    "write_export",
    "write_json_lines",
    "write_trainer_rows",
]
