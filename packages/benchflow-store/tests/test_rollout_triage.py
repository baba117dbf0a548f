"""Every view names the result of a rollout by the same words."""

from typing import Any

import pytest
from benchflow_contracts import Cause, NodeError, RolloutRecord
from benchflow_store import triage

HEAD: dict[str, Any] = {
    "rollout_id": "r",
    "task_id": "t",
    "task_digest": "sha256:0",
    "agent": "oracle",
    "model": None,
    "sandbox": "local",
    "finished_at": 0,
}
GRADING = NodeError(boundary="reward", type="RewardError", message="test.sh ended with 3\nmore")
AGENT = NodeError(boundary="agent", type="AgentTimeoutError", message="was silent")


@pytest.mark.parametrize(
    ("fields", "status", "boundary", "text"),
    [
        ({"status": "completed", "reward": 1.0}, "completed", None, "completed"),
        (
            {"status": "completed", "error": GRADING},
            "ungraded",
            "reward",
            "ungraded, reward: test.sh ended with 3",
        ),
        ({"status": "failed", "error": AGENT}, "failed", "agent", "agent: was silent"),
        (
            {"status": "completed", "reward": 0.0, "cause": Cause(by="agent", what="no files")},
            "completed",
            None,
            "agent: no files",
        ),
        ({"status": "cancelled"}, "cancelled", None, "cancelled"),
        (
            {"status": "failed", "error": AGENT.model_copy(update={"message": ""})},
            "failed",
            "agent",
            "agent: ",
        ),
    ],
)
def test_a_result_has_a_status_a_boundary_and_a_line(
    fields: dict[str, Any], status: str, boundary: str | None, text: str
) -> None:
    result = triage(RolloutRecord(**HEAD, **fields))
    assert (result.status, result.boundary, result.text) == (status, boundary, text)
