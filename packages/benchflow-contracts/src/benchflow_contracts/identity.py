"""The identity of a sandbox, which a provider stores with the sandbox and returns in records."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator

from ._model import Model

_PREFIX = "benchflow."

Name = Annotated[str, Field(min_length=1)]


class RolloutIdentity(Model):
    """The rollout that a sandbox belongs to, and the time at which the sandbox should be gone.

    A provider stores it as flat labels, and a reaper selects sandboxes by it.
    """

    scope: Name | None = None
    """The sandboxes that are listed and reaped together: the name of the job's directory."""
    job_dir: Name | None = None
    """The job's directory, as an absolute path. Jobs of one name in several places differ in it."""
    slot: Name | None = None
    """The task and the number of the sample in the job."""
    attempt: int | None = Field(default=None, ge=1)
    """The number of the try of the slot, from 1."""
    epoch: Name | None = None
    """The process that ran the job. A later process has a greater one."""
    rollout: Name | None = None
    task: Name | None = None
    environment: Name | None = None
    node: Name | None = None
    purpose: Name | None = None
    """The use of a sandbox that is not for the agent, such as `grading`."""
    deadline: int | None = Field(default=None, ge=0)
    """When the sandbox should be gone, in seconds since the epoch."""
    other: Mapping[Name, str] = {}
    """Labels that are not fields of this model."""

    @field_validator("other")
    @classmethod
    def _no_field(cls, other: Mapping[str, str]) -> Mapping[str, str]:
        if clash := _LABELS.keys() & other.keys():
            raise ValueError(f"label {min(clash)!r} is a field of its own")
        return other

    def labels(self) -> dict[str, str]:
        """Return the flat labels, such as `benchflow.rollout`, from which `of_labels` reads."""
        values = ((label, getattr(self, name)) for label, name in _LABELS.items())
        return {label: str(value) for label, value in values if value is not None} | dict(
            self.other
        )

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> Self:
        """Read flat labels, also those of an older version.

        Labels without a field are in `other`. A value that its field does not accept is left out.
        """
        fields: dict[str, Any] = {_LABELS[key]: labels[key] for key in _LABELS.keys() & labels}
        fields["other"] = {key: labels[key] for key in labels.keys() - _LABELS.keys() if key}
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            wrong = {each["loc"][0] for each in error.errors()}
            return cls.model_validate({k: v for k, v in fields.items() if k not in wrong})


_LABELS = {f"{_PREFIX}{name}": name for name in RolloutIdentity.model_fields if name != "other"}
