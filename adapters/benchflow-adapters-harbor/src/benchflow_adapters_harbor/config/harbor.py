"""`task.toml` as a whole."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from .artifact import Artifacts
from .environment import HarborEnvironment
from .phases import AgentPhase, StepConfig, VerifierPhase, step_key
from .record import Record, as_table

_PACKAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*")


def package_name(name: str) -> str:
    """Return the name of a task or dataset in Harbor's registry.

    Raises:
        ValueError: It is not `org/name` of letters, digits, `-`, `_` and `.`.
    """
    if not _PACKAGE.fullmatch(name) or ".." in name:
        raise ValueError(f"{name[:80]!r} is not of the form 'org/name'")
    return name


PackageName = Annotated[str, AfterValidator(package_name)]


class Author(Record):
    """An author of a task."""

    name: str
    email: str | None = None


class Package(Record):
    """`[task]`: the task's identity in a registry."""

    name: PackageName
    version: str | None = Field(default=None, min_length=1)
    description: str = ""
    authors: tuple[Author, ...] = ()
    keywords: tuple[str, ...] = ()


class Solution(Record):
    """`[solution]`: variables that only the reference solution gets."""

    env: Mapping[str, str] = {}


class HarborConfig(Record):
    """A `task.toml` of the schemas 1.0 to 1.4, with the fields of 1.4."""

    legacy: ClassVar[frozenset[str]] = frozenset({"version"})

    schema_version: str = "1.4"
    task: Package | None = None
    metadata: Mapping[str, Any] = {}
    verifier: VerifierPhase = VerifierPhase()
    agent: AgentPhase = AgentPhase()
    environment: HarborEnvironment = HarborEnvironment()
    solution: Solution = Solution()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    """`None` means `mean` in a task of several steps."""
    steps: tuple[StepConfig, ...] | None = None
    artifacts: Artifacts = ()

    @model_validator(mode="before")
    @classmethod
    def _rename_version(cls, data: Any) -> Any:  # noqa: ANN401 - any TOML value
        table = as_table(data)
        if table is None or "version" not in table:
            return data
        version = table.pop("version")
        table.setdefault("schema_version", version)
        return table

    @field_validator("steps")
    @classmethod
    def _check_names_differ(
        cls, steps: tuple[StepConfig, ...] | None
    ) -> tuple[StepConfig, ...] | None:
        seen: set[str] = set()
        for step in steps or ():
            if step_key(step.name) in seen:
                raise ValueError(f"two steps have the name {step.name!r}, ignoring letter case")
            seen.add(step_key(step.name))
        return steps
