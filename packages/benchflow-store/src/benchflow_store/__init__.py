"""The files of a rollout: one writer and one reader.

The names below are loaded on first use: a program imports only the modules that it uses.
"""

from typing import TYPE_CHECKING

from benchflow_contracts.lazy_names import lazy_names

if TYPE_CHECKING:
    from .attempts import (
        earlier_attempt,
        last_attempt,
        later_attempts,
        name_successor,
        prior_calls,
        write_prior_calls,
    )
    from .files import rewards_jsonl, write_inputs, write_result, write_rollout, write_text
    from .group_rewards import (
        GROUP_FILE,
        GroupMean,
        GroupRecord,
        GroupVerdict,
        LostMember,
        append_group,
        apply_groups,
        group_means,
        lost_leaves,
        may_score,
        member_means,
        read_groups,
    )
    from .imported import IMPORTED_AGENT, write_imported
    from .leaf_follower import follow_leaves, is_final
    from .node_states import MissingState, missing_state
    from .progress import (
        BranchActivity,
        BranchProgress,
        OpenTool,
        RolloutProgress,
        UsageProgress,
        writer_of,
    )
    from .record import (
        RESUMED_FROM,
        RanWith,
        error_fingerprint,
        new_job_name,
        new_rollout_id,
        pass_at_k,
        read_began_from,
        record_from_error,
        record_from_tree,
        sum_prior,
    )
    from .rollout_evidence import EvidenceFile, EvidenceListing, list_evidence, open_evidence
    from .rollout_summary import RolloutSummary, find_rollouts
    from .rollout_triage import Triage, triage
    from .saved_checkpoints import (
        SavedCheckpoint,
        checkpoint_paths,
        checkpoints_below,
        checkpoints_of,
        delete_checkpoints,
        export_checkpoint,
        find_checkpoint,
        read_trusted_manifest,
    )
    from .sealed_config import has_own_seal, seal_config
    from .state_comparison import (
        ComparedNode,
        StateComparison,
        StepComparison,
        compare_states,
        compare_steps,
    )
    from .stored_rollout import (
        JUDGE_DIR,
        MODEL_DIR,
        StoredConfig,
        StoredRollout,
        latest_records,
        read_finished_rollouts,
        read_model_calls,
        read_record,
        read_records,
    )
    from .views import (
        EventKind,
        EventLine,
        LineKind,
        NodeView,
        PathNode,
        Segment,
        StepLine,
        TrajectoryView,
        TreeView,
        event_lines,
        step_lines,
        step_title,
    )

__all__ = [
    "GROUP_FILE",
    "IMPORTED_AGENT",
    "JUDGE_DIR",
    "MODEL_DIR",
    "RESUMED_FROM",
    "BranchActivity",
    "BranchProgress",
    "ComparedNode",
    "EventKind",
    "EventLine",
    "EvidenceFile",
    "EvidenceListing",
    "GroupMean",
    "GroupRecord",
    "GroupVerdict",
    "LineKind",
    "LostMember",
    "MissingState",
    "NodeView",
    "OpenTool",
    "PathNode",
    "RanWith",
    "RolloutProgress",
    "RolloutSummary",
    "SavedCheckpoint",
    "Segment",
    "StateComparison",
    "StepComparison",
    "StepLine",
    "StoredConfig",
    "StoredRollout",
    "TrajectoryView",
    "TreeView",
    "Triage",
    "UsageProgress",
    "append_group",
    "apply_groups",
    "checkpoint_paths",
    "checkpoints_below",
    "checkpoints_of",
    "compare_states",
    "compare_steps",
    "delete_checkpoints",
    "earlier_attempt",
    "error_fingerprint",
    "event_lines",
    "export_checkpoint",
    "find_checkpoint",
    "find_rollouts",
    "follow_leaves",
    "group_means",
    "has_own_seal",
    "is_final",
    "last_attempt",
    "later_attempts",
    "latest_records",
    "list_evidence",
    "lost_leaves",
    "may_score",
    "member_means",
    "missing_state",
    "name_successor",
    "new_job_name",
    "new_rollout_id",
    "open_evidence",
    "pass_at_k",
    "prior_calls",
    "read_began_from",
    "read_finished_rollouts",
    "read_groups",
    "read_model_calls",
    "read_record",
    "read_records",
    "read_trusted_manifest",
    "record_from_error",
    "record_from_tree",
    "rewards_jsonl",
    "seal_config",
    "step_lines",
    "step_title",
    "sum_prior",
    "triage",
    "write_imported",
    "write_inputs",
    "write_prior_calls",
    "write_result",
    "write_rollout",
    "write_text",
    "writer_of",
]

_HOMES = {
    name: module
    for module, names in {
        "attempts": (
            "earlier_attempt last_attempt later_attempts name_successor prior_calls "
            "write_prior_calls"
        ),
        "files": "rewards_jsonl write_inputs write_result write_rollout write_text",
        "imported": "IMPORTED_AGENT write_imported",
        "node_states": "MissingState missing_state",
        "progress": (
            "BranchActivity BranchProgress OpenTool RolloutProgress UsageProgress writer_of"
        ),
        "record": (
            "RESUMED_FROM RanWith error_fingerprint new_job_name new_rollout_id pass_at_k "
            "read_began_from record_from_error record_from_tree sum_prior"
        ),
        "leaf_follower": "follow_leaves is_final",
        "group_rewards": (
            "GROUP_FILE GroupMean GroupRecord GroupVerdict LostMember append_group apply_groups "
            "group_means lost_leaves may_score member_means read_groups"
        ),
        "rollout_evidence": "EvidenceFile EvidenceListing list_evidence open_evidence",
        "rollout_summary": "RolloutSummary find_rollouts",
        "saved_checkpoints": (
            "SavedCheckpoint checkpoint_paths checkpoints_below checkpoints_of "
            "delete_checkpoints export_checkpoint find_checkpoint read_trusted_manifest"
        ),
        "sealed_config": "has_own_seal seal_config",
        "state_comparison": (
            "ComparedNode StateComparison StepComparison compare_states compare_steps"
        ),
        "stored_rollout": (
            "JUDGE_DIR MODEL_DIR StoredConfig StoredRollout latest_records read_finished_rollouts "
            "read_model_calls read_record read_records"
        ),
        "rollout_triage": "Triage triage",
        "views": (
            "EventKind EventLine LineKind NodeView PathNode Segment StepLine "
            "TrajectoryView TreeView event_lines step_lines step_title"
        ),
    }.items()
    for name in names.split()
}
"""The module of each name."""

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
