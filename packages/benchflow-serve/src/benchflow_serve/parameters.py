"""The parameters that several routes have."""

from typing import Annotated

from litestar.params import HeaderParameter, PathParameter

PathName = Annotated[str, PathParameter(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""The name of a rollout, a group, a policy or a job."""

SessionName = Annotated[str, PathParameter(pattern=r"^[0-9a-f]{32}$")]

IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(name="Idempotency-Key", min_length=1, max_length=200, required=False),
]

LastEventId = Annotated[
    str | None, HeaderParameter(name="Last-Event-ID", pattern=r"^[0-9]{1,15}$", required=False)
]
