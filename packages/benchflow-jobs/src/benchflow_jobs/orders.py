"""Orders to a job that runs, as JSON between processes."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from benchflow_contracts import RareModel
from pydantic import ConfigDict, Field, TypeAdapter, model_validator

Scope = Literal["job", "variant", "endpoint"]
MAX_REPLICATIONS: Final = 65_535
"""The schedule has two bytes for the number of a replication."""


class _Order(RareModel):
    by: str = ""
    """Who gives the order."""


class Pause(_Order):
    """Start nothing more in a scope. What runs continues, stands still, or is saved and ends."""

    do: Literal["pause"] = "pause"
    scope: Scope = "job"
    name: str = ""
    """The variant, or the URL of the model endpoint."""
    reason: str = ""
    now: bool = False
    """Freeze the sandboxes of what runs, and hold its model calls and time limits."""
    keep: bool = False
    """Save what runs at its next state that can be restored, and end it. A resume continues it."""

    @model_validator(mode="after")
    def _holds_or_ends(self) -> Self:
        if self.now and self.keep:
            raise ValueError("'now' and 'keep' exclude each other")
        return self


class Resume(_Order):
    """End a pause, also one that a circuit breaker made."""

    do: Literal["resume"] = "resume"
    scope: Scope = "job"
    name: str = ""


class Drain(_Order):
    """Start nothing more. The job ends when what runs has ended."""

    do: Literal["drain"] = "drain"


class Cancel(_Order):
    """End what runs, and then the job. It can be resumed."""

    do: Literal["cancel"] = "cancel"


class Kill(_Order):
    """End what runs, and then the job, as `killed`."""

    do: Literal["kill"] = "kill"


class Requeue(_Order):
    """Give slots without a score one more attempt."""

    do: Literal["requeue"] = "requeue"
    slots: tuple[str, ...] = ()
    """Globs over the names of slots."""
    errors: tuple[str, ...] = ()
    """Globs over the boundary, the type or the fingerprint of the last error."""


class Extend(_Order):
    """Add replications, tasks or variants to the job."""

    do: Literal["extend"] = "extend"
    replications: int | None = Field(default=None, ge=1, le=MAX_REPLICATIONS)
    tasks: tuple[str, ...] = ()
    """Sources, as `dataset.paths`."""
    variants: tuple[Mapping[str, Any], ...] = ()
    """Tables, as `[[variants]]`."""


class SetLimits(_Order):
    """Change limits while the job runs."""

    do: Literal["set"] = "set"
    slots: int | None = Field(default=None, ge=1)
    endpoints: Mapping[str, Annotated[int, Field(ge=1)]] = {}
    cost_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tokens: int | None = Field(default=None, ge=1)


Order = Annotated[
    Pause | Resume | Drain | Cancel | Kill | Requeue | Extend | SetLimits,
    Field(discriminator="do"),
]
order_adapter: TypeAdapter[Order] = TypeAdapter(Order, config=ConfigDict(defer_build=True))
"""Built on its first use: most jobs get no order."""


class Reply(RareModel):
    """The answer to an order."""

    ok: bool
    message: str
    """What was done, or why not, in one sentence."""
    hint: str | None = None
