"""`[verifier.judge]` of task.toml."""

from benchflow_contracts import Model
from pydantic import Field, field_validator

from .paths import absolute_path


class JudgeTable(Model):
    """How a model grades. The operator gives the endpoint, and may give the model."""

    criteria: str = Field(min_length=1)
    files: tuple[str, ...] = ()
    scale: tuple[int, ...] = (0, 1, 2, 3, 4)
    votes: int = Field(default=3, ge=1, le=15)
    timeout_sec: float = Field(default=120, gt=0)
    model: str | None = None

    @field_validator("files")
    @classmethod
    def _files_are_absolute(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(absolute_path, files))

    @field_validator("scale")
    @classmethod
    def _scale_rises(cls, scale: tuple[int, ...]) -> tuple[int, ...]:
        if len(scale) < 2 or list(scale) != sorted(set(scale)):
            raise ValueError("it rises and has at least two values")
        return scale

    @field_validator("votes")
    @classmethod
    def _votes_are_odd(cls, votes: int) -> int:
        if votes % 2 == 0:
            raise ValueError("it is odd")
        return votes
