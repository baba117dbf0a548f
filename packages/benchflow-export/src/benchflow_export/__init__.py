"""Finished rollouts in the formats of trainers, and of other installed exporters.

The names below are loaded on first use: a job without an export imports only its trainer rows.
"""

from typing import TYPE_CHECKING

from benchflow_contracts.lazy_names import lazy_names

if TYPE_CHECKING:
    from benchflow_contracts import SharedPrefix

    from .advantages import with_group_advantages
    from .episodes import Shape, episode
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
    from .leaf_stream import LeafStream
    from .messages import Message, steps_to_messages
    from .rollout_groups import (
        ExcludedLeaf,
        ExcludedReason,
        RolloutGroup,
        TrainerOptions,
        group_rollouts,
        group_samples,
    )
    from .rows import (
        ExportReport,
        export_trajectories_to_jsonl,
        trajectory_to_verifiers_record,
        write_json_lines,
    )
    from .samples import samples_of
    from .token_rows import (
        CreditRow,
        ResponseRow,
        credit_rows,
        fill_rows,
        response_rows,
        version_number,
        version_range,
    )
    from .trainer import (
        group_of,
        leaf_record,
        read_trainer_rows,
        with_inter_advantage,
        write_trainer_rows,
    )

__all__ = [
    "CreditRow",
    "EpisodeExporter",
    "ExcludedLeaf",
    "ExcludedReason",
    "ExportFormat",
    "ExportReport",
    "GroupServer",
    "GroupSource",
    "LeafStream",
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
    "group_samples",
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

_HOMES = {
    name: module
    for module, names in {
        "advantages": ("with_group_advantages"),
        "episodes": ("Shape SharedPrefix episode"),
        "exporters": (
            "ExportFormat export_formats exporter_with load_exporter publish write_export"
        ),
        "formats": ("EpisodeExporter RowExporter"),
        "group_sources": ("GroupServer GroupSource RequestedGroups StoredGroups"),
        "leaf_stream": "LeafStream",
        "messages": ("Message steps_to_messages"),
        "rollout_groups": (
            "ExcludedLeaf ExcludedReason RolloutGroup TrainerOptions group_rollouts group_samples"
        ),
        "rows": (
            "ExportReport export_trajectories_to_jsonl "
            "trajectory_to_verifiers_record write_json_lines"
        ),
        "samples": ("samples_of"),
        "token_rows": (
            "CreditRow ResponseRow credit_rows fill_rows response_rows version_number version_range"
        ),
        "trainer": (
            "group_of leaf_record read_trainer_rows with_inter_advantage write_trainer_rows"
        ),
    }.items()
    for name in names.split()
}
"""The module of each name."""

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
