"""Names of jobs and rollouts."""

import secrets
from datetime import UTC, datetime


def new_rollout_id(task_id: str) -> str:
    """Return `<task>__<8 hex digits>`, without the organisation of the task."""
    return f"{task_id.rsplit('/', 1)[-1]}__{secrets.token_hex(4)}"


def new_job_name() -> str:
    """Return `YYYY-MM-DD__HH-MM-SS`, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d__%H-%M-%S")
