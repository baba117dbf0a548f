"""The flags of a rollout, and the configuration that they and the file of a command give."""

from collections.abc import Mapping
from typing import Annotated, Any

from benchflow_engine.config import RunConfig
from benchflow_engine.flags import FLAGS, RunFlags, with_flags
from benchflow_kernel.resolve import Origin
from cyclopts import Parameter

from .config import file_tables, sources

Run = Annotated[RunFlags, Parameter(name="*")]
"""Each flag of a rollout."""


def configuration(flags: RunFlags, defaults: Mapping[str, Any] | None = None) -> RunConfig:
    """Return the configuration of a command's rollouts: `defaults`, the file, then the flags.

    Raises:
        UsageError: Two settings contradict each other.
    """
    return with_flags({**(defaults or {}), **file_tables()}, flags)


def origins() -> Mapping[str, Origin]:
    """Return the origin of each setting of this command that is not a default, by its name."""
    return {_setting(name): Origin(*source) for name, source in sources().items()}


def _setting(name: str) -> str:
    """Return the setting of a flag. A key of the file is a setting already."""
    if not name.startswith("--"):
        return name
    flag, dot, key = name.removeprefix("--").partition(".")
    option = flag.replace("-", "_")
    return FLAGS.get(option, option) + dot + key
