"""Find the keys of a compose file that may reach the host.

The list of safe keys follows https://github.com/compose-spec/compose-spec. Every other key is
reported, because a newer key of that format may start programs of the host. A `$` counts as
any text, because its default may be anything.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, cast

from .compose import Compose


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TOP = frozenset({"services", "volumes", "networks", "secrets", "configs", "version", "name"})
_SERVICE = _words(
    """annotations attach blkio_config cap_drop command configs container_name cpu_count
    cpu_percent cpu_period cpu_quota cpu_shares cpus cpuset depends_on develop dns dns_opt
    dns_search domainname entrypoint environment expose extra_hosts healthcheck hostname image
    init label_file labels links logging mac_address mem_limit mem_reservation mem_swappiness
    memswap_limit networks oom_kill_disable oom_score_adj pids_limit platform ports profiles
    pull_policy read_only restart scale secrets shm_size stdin_open stop_grace_period stop_signal
    storage_opt sysctls tmpfs tty ulimits user working_dir"""
)
_BUILD = _words(
    """args cache_from dockerfile_inline extra_hosts labels no_cache platforms pull shm_size tags
    target"""
)
_VOLUME = frozenset({"driver", "labels"})
_NETWORK = frozenset({"driver", "internal", "attachable", "labels", "ipam", "enable_ipv6", "name"})
"""A `name` is safe: compose does not use a network that it did not create."""
_NAMESPACES = ("network_mode", "pid", "ipc", "uts", "userns_mode", "cgroup")
_INSIDE = re.compile(r"none|bridge|private|shareable|service:[A-Za-z0-9_.-]+")
_CAPS = _words(
    """AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID IPC_LOCK KILL MKNOD NET_ADMIN NET_BIND_SERVICE
    NET_RAW SETFCAP SETGID SETPCAP SETUID SYS_CHROOT SYS_NICE"""
)
"""Capabilities that the container's namespaces confine: Docker's defaults and a few more."""
_RUNNERS = re.compile(
    r"\$\{(CONTEXT_DIR|(HOST|ENV)_(VERIFIER_LOGS|AGENT_LOGS|ARTIFACTS)_PATH"
    r"|T_BENCH_(TASK|CONTAINER)_(AGENT_)?LOGS_PATH)\}(?=/|$)"
)
"""Variables that the runner sets to directories of the rollout."""


def host_access_requests(compose: Compose) -> Iterator[tuple[str, str]]:
    """Yield the key and the reason of each entry that could give the task access to the host."""
    document = compose.document
    yield from _unknown(document, _TOP, "")
    for name, volume in _entries(document.get("volumes")):
        yield from _local(volume, _VOLUME, "local", f"volumes.{name}")
    for name, network in _entries(document.get("networks")):
        yield from _local(network, _NETWORK, "bridge", f"networks.{name}")
    for kind in ("secrets", "configs"):
        for name, entry in _entries(document.get(kind)):
            yield from _file(entry, f"{kind}.{name}")
    for name, service in compose.services.items():
        for key, reason in _service(service.document):
            yield f"services.{name}.{key}", reason


def _service(service: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    inspected = {
        "build": _build,
        "cap_add": _capabilities,
        "deploy": _deploy,
        "env_file": _env_files,
        "extends": _extends,
        "security_opt": _security,
        "volumes": _mounts,
    }
    for key, value in service.items():
        if key in inspected:
            yield from inspected[key](value)
        elif key in _NAMESPACES:
            if not (isinstance(value, str) and _INSIDE.fullmatch(value)):
                yield key, "shares a namespace with the host or a foreign container"
        elif value not in (None, False, [], {}):
            yield from _unknown({key: value}, _SERVICE, "")


def _unknown(
    table: Mapping[Any, Any], known: frozenset[str], prefix: str
) -> Iterator[tuple[str, str]]:
    for key in table:
        if key not in known and not str(key).startswith("x-"):
            yield f"{prefix}{str(key)[:80]}", "is not known to stay inside the containers"


def _local(
    entry: object, known: frozenset[str], driver: str, where: str
) -> Iterator[tuple[str, str]]:
    table = _table(entry)
    yield from _unknown(table, known, f"{where}.")
    if table.get("driver", driver) != driver:
        yield f"{where}.driver", "is not known to stay inside the containers"


def _file(entry: object, where: str) -> Iterator[tuple[str, str]]:
    table = _table(entry)
    yield from _unknown(table, frozenset({"file", "content", "labels"}), f"{where}.")
    if "file" in table and may_leave_task(table["file"]):
        yield f"{where}.file", "reads a file of the host"


def _build(value: object) -> Iterator[tuple[str, str]]:
    table = {"context": value} if isinstance(value, str) else _table(value)
    yield from _unknown(table, _BUILD | {"context", "dockerfile", "network"}, "build.")
    for key in ("context", "dockerfile"):
        if key in table and may_leave_task(table[key]):
            yield f"build.{key}", "builds from files of the host"
    if table.get("network", "default") not in ("default", "none"):
        yield "build.network", "builds in a network of the host"


def _capabilities(value: object) -> Iterator[tuple[str, str]]:
    capabilities = {str(cap).upper().removeprefix("CAP_") for cap in _items(value)}
    if refused := sorted(capabilities - _CAPS):
        yield "cap_add", f"requests {', '.join(refused)[:80]}, which may reach beyond a container"


def _deploy(value: object) -> Iterator[tuple[str, str]]:
    resources = _table(_table(value).get("resources"))
    if any(_table(part).get("devices") for part in resources.values()):
        yield "deploy.resources", "requests devices of the host"


def _env_files(value: object) -> Iterator[tuple[str, str]]:
    for item in _items(value):
        if may_leave_task(item if isinstance(item, str) else _table(item).get("path", 0)):
            yield "env_file", "reads a file of the host"


def _extends(value: object) -> Iterator[tuple[str, str]]:
    if may_leave_task(_table(value).get("file")):
        yield "extends", "reads a file of the host"


def _security(value: object) -> Iterator[tuple[str, str]]:
    harmless = {"no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"}
    if any(str(option) not in harmless for option in _items(value)):
        yield "security_opt", "may switch off the confinement of the container"


def _mounts(value: object) -> Iterator[tuple[str, str]]:
    for index, volume in enumerate(_items(value)):
        source = _source(volume)
        if source is None or may_leave_task(source):
            yield f"volumes.{index}", f"mounts {str(source)[:80]!r} of the host"


def _source(volume: object) -> object:
    if not isinstance(volume, str):
        table = _table(volume)
        known = table.get("type") in ("bind", "volume", "tmpfs")
        return table.get("source", "") if known else None
    # A colon may be part of `${NAME:-default}`.
    end = volume.find("}") + 1 if volume.startswith("${") else 0
    head, colon, _ = volume[end:].partition(":")
    return volume[:end] + head if colon else ""


def may_leave_task(path: object) -> bool:
    """Return whether `path`, relative to the task, could lead out of the task."""
    if not isinstance(path, str):
        return path is not None
    runners = _RUNNERS.match(path)
    rest = path[runners.end() :] if runners else path
    outside = runners is None and rest.startswith(("/", "~", "\\"))
    return outside or "$" in rest or ".." in PurePosixPath(rest).parts


def _entries(value: object) -> list[tuple[str, object]]:
    return [(str(name), entry) for name, entry in _table(value).items()]


def _table(value: object) -> Mapping[Any, Any]:
    return cast("Any", value) if isinstance(value, Mapping) else {}


def _items(value: object) -> Sequence[object]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return cast("Sequence[object]", value)
    return [] if value is None else [value]
