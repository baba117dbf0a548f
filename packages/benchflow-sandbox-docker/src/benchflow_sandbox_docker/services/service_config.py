"""The engine's configuration of a service's container."""

from collections.abc import Mapping
from typing import Any, Literal

from benchflow_contracts.container import ContainerOptions
from benchflow_contracts.service import ServiceHealth, ServiceSpec

from benchflow_sandbox_docker.container_config import CAPABILITIES

_SERVERS = ("NET_RAW", "SETFCAP", "SYS_CHROOT")
"""Capabilities that servers need beyond those of a sandbox. Docker grants them by default."""
_LOG = {"max-size": "1m", "max-file": "1"}
_NANO = 1_000_000_000


def arguments(
    spec: ServiceSpec, image: str, labels: Mapping[str, str], volumes: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments of the engine's `create`. `volumes` maps names to engine names."""
    config: dict[str, Any] = {
        "Image": image,
        "Env": [f"{name}={value}" for name, value in spec.env.items()],
        "Labels": dict(labels),
        "StopTimeout": 0,
        "Hostname": spec.name,
        "User": spec.user,
        "WorkingDir": spec.workdir,
        "HostConfig": _host(spec),
    }
    if spec.entrypoint is not None:
        config["Entrypoint"] = list(spec.entrypoint)
    if spec.command is not None:
        config["Cmd"] = list(spec.command)
    if spec.health is not None:
        config["Healthcheck"] = _health(spec.health)
    return with_options(config, spec, volumes)


def _host(spec: ServiceSpec) -> dict[str, Any]:
    limits = spec.limits
    memory = None if limits.memory_mb is None else limits.memory_mb << 20
    return {
        "CapDrop": ["ALL"],
        "CapAdd": [*CAPABILITIES, *_SERVERS],
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": limits.pids,
        "Memory": memory,
        "MemorySwap": memory,
        "NanoCpus": None if limits.cpus is None else int(limits.cpus * _NANO),
        "ReadonlyRootfs": spec.read_only,
        "LogConfig": {"Type": "json-file", "Config": _LOG},
        "RestartPolicy": _restarts(spec.restarts),
        "Init": True,
        "IpcMode": "private",
        "Mounts": [],
        "Tmpfs": dict.fromkeys(spec.tmpfs, ""),
    }


def _restarts(count: int | Literal["always"]) -> dict[str, Any]:
    if count == "always":
        return {"Name": "always"}
    return {"Name": "on-failure", "MaximumRetryCount": count} if count else {"Name": "no"}


def _health(health: ServiceHealth) -> dict[str, Any]:
    return {
        "Test": list(health.test),
        "Interval": int(health.interval_sec * _NANO),
        "Timeout": int(health.timeout_sec * _NANO),
        "StartPeriod": int(health.start_period_sec * _NANO),
        "Retries": health.retries,
        # Engines before API 1.44 ignore this field.
        "StartInterval": int((health.start_interval_sec or 0) * _NANO),
    }


def with_options(
    config: Mapping[str, Any], options: ContainerOptions, volumes: Mapping[str, str]
) -> dict[str, Any]:
    """Add `options` to the arguments of `create`. `volumes` maps names to engine names.

    The entrypoint, the command, the networks and the needs of `options` are ignored.
    """
    host = dict(config["HostConfig"])
    host["Mounts"] = [*host["Mounts"], *_mounts(options, volumes)]
    if options.hosts:
        host["ExtraHosts"] = [f"{name}:{address}" for name, address in options.hosts.items()]
    if options.ulimits:
        host["Ulimits"] = [
            {"Name": name, "Soft": soft, "Hard": hard}
            for name, (soft, hard) in options.ulimits.items()
        ]
    if options.shm_mb is not None:
        host["ShmSize"] = options.shm_mb << 20
    named = {"Hostname": options.hostname} if options.hostname else {}
    return {**config, **named, "HostConfig": host}


def _mounts(options: ContainerOptions, volumes: Mapping[str, str]) -> list[dict[str, Any]]:
    named = [
        {"Type": "volume", "Source": volumes[name], "Target": target}
        for target, name in options.volumes.items()
    ]
    shown = [
        {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": True}
        for target, source in options.files.items()
    ]
    from_host = [
        {"Type": "bind", "Source": str(m.path), "Target": target, "ReadOnly": m.read_only}
        for target, m in options.host_mounts.items()
    ]
    return named + shown + from_host
