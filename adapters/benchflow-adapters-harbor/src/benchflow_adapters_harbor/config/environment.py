"""`[environment]` and `[verifier.environment]`: the container."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, field_validator, model_validator

from .network import AllowedHost, NetworkMode, NetworkPolicy, check_hosts
from .record import Record, Seconds, as_table

_FLAG = TypeAdapter(bool)
_UNITS = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}
_TOPOLOGY = re.compile(r"[1-9]\d*(x[1-9]\d*)+")
Amount = Annotated[int, Field(ge=0)]


class Healthcheck(Record):
    """A command that must succeed before the agent is set up, as in Docker's HEALTHCHECK."""

    command: str
    interval_sec: Seconds = 5
    timeout_sec: Seconds = 30
    start_period_sec: Seconds = 0
    """Failures in this period do not count."""
    start_interval_sec: Seconds = 5
    retries: int = 3


class TpuSlice(Record):
    """`[environment.tpu]`."""

    type: str = Field(min_length=1)
    topology: str

    @field_validator("topology")
    @classmethod
    def _check_topology(cls, value: str) -> str:
        if not _TOPOLOGY.fullmatch(value.strip()):
            raise ValueError("must be positive integers separated by 'x', such as '2x4'")
        return value.strip()


def _transport(value: object) -> object:
    return "streamable-http" if value == "http" else value


class HarborMcpServer(Record):
    """`[[environment.mcp_servers]]`: a tool server for the agent."""

    name: str
    transport: Annotated[
        Literal["stdio", "sse", "streamable-http"], BeforeValidator(_transport)
    ] = "sse"
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_address(self) -> "HarborMcpServer":
        if self.transport == "stdio" and not self.command:
            raise ValueError("'command' is required for transport 'stdio'")
        if self.transport != "stdio" and not self.url:
            raise ValueError(f"'url' is required for transport {self.transport!r}")
        return self


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


class HarborEnvironment(Record):
    """A container: its image, resources, network and contents.

    `None` as an amount is unlimited. A value of `env` may be `${VAR}` or `${VAR:-default}`,
    a variable of the host. The record has the value as written.
    """

    legacy: ClassVar[frozenset[str]] = frozenset({"memory", "storage", "allow_internet"})

    network_mode: NetworkMode = "public"
    allowed_hosts: tuple[AllowedHost, ...] | None = None
    build_timeout_sec: Seconds = 600
    docker_image: str | None = None
    os: Annotated[Literal["linux", "windows"], BeforeValidator(_lower)] = "linux"
    cpus: Amount | None = None
    memory_mb: Amount | None = None
    storage_mb: Amount | None = None
    gpus: Amount | None = None
    gpu_types: tuple[str, ...] | None = None
    tpu: TpuSlice | None = None
    mcp_servers: tuple[HarborMcpServer, ...] = ()
    env: Mapping[str, str] = {}
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_older_schemas(cls, data: Any) -> Any:  # noqa: ANN401 - any TOML value
        table = as_table(data)
        if table is None:
            return data
        for old in ("memory", "storage"):
            size = table.pop(old, None)
            if isinstance(size, str):
                _set_size(table, old, size)
        internet = table.pop("allow_internet", None)
        policy = {"network_mode", "allowed_hosts"} & table.keys()
        if internet is not None:
            allowed = _FLAG.validate_python(internet)
            if not policy:
                table["network_mode"] = "public" if allowed else "no-network"
        return table

    @model_validator(mode="after")
    def _check_hosts(self) -> "HarborEnvironment":
        check_hosts(self.network_mode, self.allowed_hosts)
        return self

    def policy(self) -> NetworkPolicy:
        """Return the container's network for phases without a network of their own."""
        return NetworkPolicy(network_mode=self.network_mode, allowed_hosts=self.allowed_hosts or ())


def _set_size(table: dict[str, object], old: str, size: str) -> None:
    new = f"{old}_mb"
    text = size.strip().upper()
    try:
        amount = int(float(text[:-1]) * _UNITS[text[-1:]])
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"{old} = {size[:40]!r} is not a size such as '2G' or '512M'") from None
    if table.setdefault(new, amount) != amount:
        raise ValueError(f"{old} = {size!r} and {new} = {table[new]!r} contradict each other")
