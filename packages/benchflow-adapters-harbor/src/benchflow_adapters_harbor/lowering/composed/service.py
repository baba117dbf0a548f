"""One service of a compose file, in its one normal form."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from benchflow_adapters_harbor.config import Record

from .forms import Cpus, Megabytes, Seconds, Text, Texts, Words
from .tables import as_build, as_limits, as_named, as_pairs, as_test, as_volume

Condition = Literal["service_started", "service_healthy", "service_completed_successfully"]

_WITHOUT_EFFECT = frozenset(
    {
        # Nobody is outside, on a terminal or at the logs of a service; its name is ours.
        *("ports", "expose", "tty", "stdin_open", "logging", "container_name", "labels"),
        *("annotations", "platform", "pull_policy", "attach"),
        # What ends and confines a container is ours, and stricter.
        *("stop_grace_period", "stop_signal", "init", "cap_drop", "security_opt"),
        # Wishes of a scheduler.
        *("cpu_shares", "mem_reservation", "memswap_limit", "mem_swappiness", "blkio_config"),
    }
)
"""Keys of compose that change nothing for who is inside."""


class _Strict(Record):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Build(_Strict):
    """`build`: a directory below the compose file's."""

    context: str = "."
    dockerfile: str = "Dockerfile"


class Health(_Strict):
    """`healthcheck`."""

    test: Annotated[tuple[str, ...], BeforeValidator(as_test)] = ()
    interval: Seconds = 30
    timeout: Seconds = 30
    start_period: Seconds = 0
    start_interval: Seconds = 5
    retries: int = 3
    disable: bool = False


class Dependency(_Strict):
    """A value of `depends_on`."""

    condition: Condition = "service_started"
    restart: bool = False
    required: bool = True


class Volume(_Strict):
    """An entry of `volumes`."""

    type: Literal["volume", "bind", "tmpfs"] = "volume"
    source: str = ""
    target: str
    read_only: bool = False


class ServiceNetwork(_Strict):
    """A value of `networks`."""

    aliases: tuple[str, ...] = ()


class Limits(_Strict):
    """`deploy.resources.limits`."""

    cpus: Cpus | None = None
    memory: Megabytes | None = None
    pids: int | None = None


class ComposeService(_Strict):
    """A service whose every key is known. Others are errors: none is passed over silently."""

    image: str | None = None
    build: Annotated[Build | None, BeforeValidator(as_build)] = None
    command: Words | None = None
    entrypoint: Words | None = None
    environment: Annotated[Mapping[str, str], BeforeValidator(as_pairs)] = {}
    user: Text = ""
    working_dir: str = ""
    hostname: str = ""
    depends_on: Annotated[Mapping[str, Dependency], BeforeValidator(as_named)] = {}
    healthcheck: Health | None = None
    volumes: tuple[Annotated[Volume, BeforeValidator(as_volume)], ...] = ()
    tmpfs: Texts = ()
    networks: Annotated[Mapping[str, ServiceNetwork], BeforeValidator(as_named)] = {}
    restart: str = "no"
    mem_limit: Megabytes | None = None
    cpus: Cpus | None = None
    pids_limit: int | None = None
    limits: Annotated[Limits, BeforeValidator(as_limits)] = Field(default=Limits(), alias="deploy")

    @model_validator(mode="before")
    @classmethod
    def _without_what_has_no_effect(cls, data: Any) -> Any:  # noqa: ANN401 - what YAML gave
        if not isinstance(data, Mapping):
            return data
        table = cast("Mapping[object, object]", data)
        return {
            str(key): value
            for key, value in table.items()
            if key not in _WITHOUT_EFFECT and not str(key).startswith("x-")
        }
