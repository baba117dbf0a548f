"""What the engine is told of options that any container may have."""

from collections.abc import Mapping
from typing import Any

from benchflow_contracts.container import ContainerOptions


def with_options(
    config: Mapping[str, Any], options: ContainerOptions, volumes: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments of `create` with `options` added; `volumes` maps names to the engine's.

    Entrypoint, command, networks and what is waited for are none of these.
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
    kept = [
        {"Type": "volume", "Source": volumes[name], "Target": target}
        for target, name in options.volumes.items()
    ]
    shown = [
        {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": True}
        for target, source in options.files.items()
    ]
    trusted = [
        {"Type": "bind", "Source": str(m.path), "Target": target, "ReadOnly": m.read_only}
        for target, m in options.host_mounts.items()
    ]
    return kept + shown + trusted
