"""One service of a compose file in normal form."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from benchflow_adapters_harbor.config import Record

from .forms import (
    Cpus,
    Megabytes,
    Seconds,
    Text,
    Texts,
    UnlessEmpty,
    Words,
    as_addresses,
    as_build,
    as_deploy,
    as_env_files,
    as_grants,
    as_named,
    as_pairs,
    as_test,
    as_ulimits,
    as_volume,
    drop_keys,
)

Condition = Literal["service_started", "service_healthy", "service_completed_successfully"]

_WITHOUT_EFFECT = (
    # No process outside uses ports or logs, and BenchFlow chooses the name.
    *("ports", "expose", "logging", "container_name", "labels", "label_file", "annotations"),
    *("platform", "pull_policy", "attach", "develop"),
    # BenchFlow stops and confines containers itself, and is stricter.
    *("stop_grace_period", "stop_signal", "init", "cap_drop", "security_opt"),
    # Settings of a scheduler.
    *("cpu_shares", "mem_reservation", "memswap_limit", "mem_swappiness", "blkio_config"),
    *("oom_score_adj", "oom_kill_disable", "cpuset"),
)
"""Keys of compose that change nothing inside the container."""


class _Strict(Record):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Build(_Strict):
    """`build`: a directory below the compose file's."""

    context: str = "."
    dockerfile: str = "Dockerfile"
    dockerfile_inline: str = ""
    args: Annotated[Mapping[str, str | None], BeforeValidator(as_pairs)] = {}
    target: str = ""


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


class _Copying(_Strict):
    nocopy: bool = False


class Volume(_Strict):
    """An entry of `volumes`."""

    type: Literal["volume", "bind", "tmpfs"] = "volume"
    source: str = ""
    target: str
    read_only: bool = False
    volume: _Copying = _Copying()


class ServiceNetwork(_Strict):
    """A value of `networks`."""

    aliases: tuple[str, ...] = ()
    priority: int = 0


class Ulimit(_Strict):
    """A value of `ulimits`."""

    soft: int
    hard: int


class Grant(_Strict):
    """An entry of `secrets` or `configs`."""

    source: str
    target: str = ""


class EnvFile(_Strict):
    """An entry of `env_file`."""

    path: str
    required: bool = True


class Limits(_Strict):
    """`deploy.resources.limits`."""

    cpus: Annotated[Cpus | None, UnlessEmpty] = None
    memory: Annotated[Megabytes | None, UnlessEmpty] = None
    pids: Annotated[int | None, UnlessEmpty] = None


class _Resources(_Strict):
    limits: Limits = Limits()
    reservations: Mapping[str, Any] = {}


class _RestartPolicy(Record):
    condition: Literal["none", "on-failure", "any"] = "any"


class Deploy(_Strict):
    """`deploy`."""

    resources: _Resources = _Resources()
    restart_policy: _RestartPolicy | None = None
    replicas: Literal[1] = 1


class ComposeService(_Strict):
    """A service. An unknown key is an error and is not ignored."""

    image: str | None = None
    build: Annotated[Build | None, BeforeValidator(as_build)] = None
    command: Words | None = None
    entrypoint: Words | None = None
    environment: Annotated[Mapping[str, str | None], BeforeValidator(as_pairs)] = {}
    env_file: Annotated[tuple[EnvFile, ...], BeforeValidator(as_env_files)] = ()
    user: Text = ""
    working_dir: str = ""
    hostname: str = ""
    extra_hosts: Annotated[Mapping[str, str], BeforeValidator(as_addresses)] = {}
    depends_on: Annotated[Mapping[str, Dependency], BeforeValidator(as_named)] = {}
    healthcheck: Health | None = None
    volumes: tuple[Annotated[Volume, BeforeValidator(as_volume)], ...] = ()
    secrets: Annotated[tuple[Grant, ...], BeforeValidator(as_grants)] = ()
    configs: Annotated[tuple[Grant, ...], BeforeValidator(as_grants)] = ()
    tmpfs: Texts = ()
    networks: Annotated[Mapping[str, ServiceNetwork], BeforeValidator(as_named)] = {}
    network_mode: str = Field(default="", pattern=r"^(|none|service:.+)$")
    profiles: tuple[str, ...] = ()
    restart: Text = ""
    read_only: bool = False
    tty: bool = False
    stdin_open: bool = False
    ulimits: Annotated[Mapping[str, Ulimit], BeforeValidator(as_ulimits)] = {}
    shm_size: Megabytes | None = None
    mem_limit: Megabytes | None = None
    cpus: Cpus | None = None
    pids_limit: int | None = None
    deploy: Annotated[Deploy, BeforeValidator(as_deploy)] = Deploy()
    scale: Literal[1] = 1
    cap_add: tuple[()] = ()

    @property
    def limits(self) -> Limits:
        """The limits in `deploy`."""
        return self.deploy.resources.limits

    @field_validator("cap_add", mode="before")
    @classmethod
    def _no_more_capabilities(cls, value: Any) -> Any:  # noqa: ANN401 - any YAML value
        if value:
            raise ValueError(
                "no container gets more than Docker's default capabilities;"
                " remove this key if the task works without it"
            )
        return ()

    @model_validator(mode="before")
    @classmethod
    def _drop_keys_without_effect(cls, data: Any) -> Any:  # noqa: ANN401 - any YAML value
        return drop_keys(data, *_WITHOUT_EFFECT)
