"""A cloud as data: what its sandboxes can do, and its terms with their date and source."""

import datetime as dt
import os
import tomllib
from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path
from typing import Final, get_args

from benchflow_contracts import Model
from benchflow_contracts.errors import UsageError
from benchflow_contracts.limits import ResourceKind, ResourceLimits
from benchflow_contracts.sandbox import NetworkMode, SandboxCapabilities
from pydantic import Field, ValidationError

TERMS_VARIABLE: Final = "BENCHFLOW_CLOUD_TERMS"
"""A directory with `NAME.toml` for clouds whose terms differ, such as those of a larger plan."""
LINK_CAPABILITIES: Final = SandboxCapabilities(
    isolation="container",
    network_modes=frozenset(get_args(NetworkMode)),
    users=True,
    freeze="guest",
    kill_all=True,
    doors="tunnel",
    notes={"freeze": "the guest stops the processes; grading ends them first"},
)
"""What a container behind a link can do, whatever its cloud. The link serves every network but
`public`."""
_MAX_BYTES = 1 << 16
_HOUR, _GIB = 3600.0, 1024.0
_FIELDS: Final[Mapping[ResourceKind, str]] = {
    "cpu": "vcpus",
    "memory": "memory_mb",
    "disk": "disk_mb",
}


class Rate(Model):
    """Calls that an account may make."""

    per_second: float = Field(gt=0, allow_inf_nan=False)
    burst: float = Field(default=1, ge=1, allow_inf_nan=False)
    """Calls that may follow each other without a pause."""


class BoxSize(Model):
    """The size of a sandbox, for its price."""

    vcpus: float = Field(ge=0, allow_inf_nan=False)
    memory_mb: float = Field(ge=0, allow_inf_nan=False)
    disk_mb: float = Field(default=0, ge=0, allow_inf_nan=False)


class Prices(Model):
    """US dollars per hour of a running sandbox."""

    vcpu_hour: float = Field(ge=0, allow_inf_nan=False)
    memory_gib_hour: float = Field(ge=0, allow_inf_nan=False)
    disk_gib_hour: float = Field(default=0, ge=0, allow_inf_nan=False)
    default: BoxSize
    """The size of a sandbox for which neither the cloud nor its spec says one."""

    def per_second(self, size: BoxSize) -> float:
        """Return the US dollars for one second of a sandbox."""
        hour = size.vcpus * self.vcpu_hour + size.memory_mb / _GIB * self.memory_gib_hour
        return (hour + size.disk_mb / _GIB * self.disk_gib_hour) / _HOUR

    def size_of(self, limits: ResourceLimits, kinds: Collection[ResourceKind]) -> BoxSize:
        """Return the size that a spec asks for. The cloud obeys only limits of `kinds`."""
        given = {"vcpus": limits.cpus, "memory_mb": limits.memory_mb, "disk_mb": limits.disk_mb}
        obeyed = {_FIELDS[kind] for kind in kinds if kind in _FIELDS}
        return self.default.model_copy(
            update={name: given[name] for name in obeyed if given[name] is not None}
        )


class CloudTerms(Model):
    """What a cloud allows and asks for. The file `terms.toml` of its package has them."""

    date: dt.date
    """The day on which the source was read."""
    source: str
    creates: Rate | None = None
    """The rate of new sandboxes (default: only the cloud's own answers limit it)."""
    prices: Prices | None = None
    """`None`: the prices are not known."""


def load_terms(name: str, package: str) -> CloudTerms:
    """Return the terms of the cloud `name`: those of the user, or else those of `package`.

    Raises:
        UsageError: The file of the user does not exist or is wrong.
    """
    own = os.environ.get(TERMS_VARIABLE)
    if own and (path := Path(own) / f"{name}.toml").exists():
        return _parse(path.read_bytes(), str(path))
    text = resources.files(package).joinpath("terms.toml").read_bytes()
    return _parse(text, f"terms.toml of {package}")


def load_capabilities(package: str, name: str) -> SandboxCapabilities:
    """Return what sandboxes of a cloud can do: `LINK_CAPABILITIES`, and those of its package.

    The file `capabilities.toml` has the fields of `SandboxCapabilities`. A package with several
    providers has a table for each one, and `name` selects it.
    """
    given = tomllib.loads(resources.files(package).joinpath("capabilities.toml").read_text())
    given = given.get(name, given)
    notes = {**LINK_CAPABILITIES.notes, **given.get("notes", {})}
    return SandboxCapabilities.model_validate({**dict(LINK_CAPABILITIES), **given, "notes": notes})


def _parse(text: bytes, where: str) -> CloudTerms:
    if len(text) > _MAX_BYTES:
        raise UsageError(f"{where} has more than {_MAX_BYTES} bytes")
    try:
        return CloudTerms.model_validate(tomllib.loads(text.decode()))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise UsageError(
            f"the terms of a cloud in {where} are wrong: {error}",
            hint="compare the file with terms.toml of the cloud's package",
        ) from error
