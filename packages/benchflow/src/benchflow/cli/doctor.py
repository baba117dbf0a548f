"""`bench doctor`: check this machine by real probes."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from benchflow_contracts import (
    BaseProvider,
    BenchFlowError,
    Model,
    SandboxCapabilities,
    SandboxProvider,
)
from benchflow_engine.config import RunConfig
from benchflow_engine.flags import RunFlags
from benchflow_engine.planes import open_provider
from benchflow_kernel import Registry

from .flags import DEFAULT_JOBS, JobsDir, Json
from .output import print_hanging, print_json, terminal_width
from .rollout_flags import Run, configuration, origins

VARIABLE = "BENCHFLOW_CRIU"
OLDEST = (4, 2)
_VERSION = re.compile(r"^Version: (\d+)\.(\d+)[\w.-]*$", re.MULTILINE)
_TIMEOUT_SEC = 20.0


@dataclass(frozen=True, slots=True)
class EngineProgram:
    """The CRIU of this machine, or its problem. The provider's probe tests whether forks work."""

    path: str = ""
    version: str = ""
    problem: str = ""

    @property
    def remedy(self) -> str:
        """The remedy of the problem."""
        oldest = ".".join(map(str, OLDEST))
        return f"for live forks install criu {oldest} or newer, or name it in ${VARIABLE}"

    @classmethod
    def find(cls) -> "EngineProgram":
        """Find the program and ask it for its version."""
        setting = os.environ.get(VARIABLE)
        path = shutil.which(setting or "criu")
        if path is None:
            return cls(problem=f"{setting!r} is not a program" if setting else "not found")
        try:
            result = subprocess.run(
                [path, "--version"],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_SEC,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return cls(path, problem=f"{path} does not run: {error}")
        match = _VERSION.search(result.stdout)
        if match is None:
            return cls(path, problem=f"{path} does not report its version")
        version = match[0].partition(" ")[2]
        if (int(match[1]), int(match[2])) < OLDEST:
            return cls(path, version, f"{path} is {version}")
        return cls(path, version)


_KEYS = ("BENCHFLOW_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "MISTRAL_API_KEY")
_GROUPS = ("sandboxes", "agents", "environments", "rewards", "task_servers")
_LOW_DISK_GB = 2.0
_WIDE = 60
_RUNSC_REMEDY = (
    "install runsc or name it in $BENCHFLOW_RUNSC, and set BENCHFLOW_LIVE_ENGINE=runsc,"
    " for live forks on gVisor's kernel"
)
_KVM, _KVM_CREATE_VM = "/dev/kvm", 0xAE01
_KVM_REMEDY = (
    "for sandboxes in Firecracker's virtual machines use --sandbox e2b, with E2B's cloud or a"
    " server with its API ($E2B_API_URL) on a host with hardware virtualization"
)


Status = Literal["ok", "warn", "fail"]


class Finding(Model):
    """The outcome of one check."""

    check: str
    status: Status
    detail: str
    remedies: tuple[str, ...] = ()


async def doctor(
    *,
    options: Run = RunFlags(),
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> int:
    """Check Python, plugins, programs, disk, keys and each installed sandbox provider.

    Exit code 1: a check failed, or nothing can be graded here. A warning does not fail. Without
    --sandbox, a provider that fails is a warning if another provider can grade.

    Examples:
        bench doctor
        bench doctor --sandbox local --json

    Args:
        options: The provider to check (default: every installed provider).
    """
    findings = [
        _python(),
        *_plugins(),
        *_programs(),
        _engine(),
        _second_engine(),
        _virtual_machines(),
        _disk(jobs_dir),
        _keys(),
    ]
    findings += await _sandboxes(configuration(options))
    if json:
        print_json([finding.model_dump(mode="json") for finding in findings])
    else:
        show(findings)
    return int(any(finding.status == "fail" for finding in findings))


def show(findings: list[Finding]) -> None:
    """Print one line for each finding and for each remedy."""
    width = terminal_width()
    names = max(len(finding.check) for finding in findings)
    # A narrow terminal is too small for a column of names.
    pad = names if width is None or width >= _WIDE else 0
    for finding in findings:
        print_hanging(f"{finding.status:<4}  {finding.check:<{pad}}  ", finding.detail)
        for remedy in finding.remedies:
            print_hanging("      remedy: ", remedy)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    return Finding(
        check="python",
        status="ok" if good else "fail",
        detail=version,
        remedies=() if good else ("install Python 3.11 or newer",),
    )


def _plugins() -> list[Finding]:
    registry = Registry()
    findings: list[Finding] = []
    for group in _GROUPS:
        loaded: list[str] = []
        for name in registry.names(f"benchflow.{group}"):
            try:
                registry.resolve(f"benchflow.{group}", name)
            except BenchFlowError as error:
                findings.append(
                    Finding(
                        check=f"plugin {group}:{name}",
                        status="fail",
                        detail=str(error),
                        remedies=(error.hint,),
                    )
                )
            else:
                loaded.append(name)
        findings.append(Finding(check=group, status="ok", detail=", ".join(sorted(loaded)) or "-"))
    return findings


def _programs() -> list[Finding]:
    needed = {
        "uv": "mistral-vibe and other Python agents",
        "node": "Node agents",
        "git": "datasets",
    }
    findings: list[Finding] = []
    for name, purpose in needed.items():
        path = shutil.which(name)
        findings.append(
            Finding(
                check=f"program {name}",
                status="ok" if path else "warn",
                detail=path or "not found",
                remedies=() if path else (f"install {name} for {purpose}",),
            )
        )
    return findings


def _engine() -> Finding:
    program = EngineProgram.find()
    return Finding(
        check="program criu",
        status="warn" if program.problem else "ok",
        detail=program.problem or f"{program.path} ({program.version})",
        remedies=(program.remedy,) if program.problem else (),
    )


def _second_engine() -> Finding:
    path = shutil.which(os.environ.get("BENCHFLOW_RUNSC") or "runsc")
    return Finding(
        check="program runsc",
        status="ok" if path else "warn",
        detail=path or "not found",
        remedies=() if path else (_RUNSC_REMEDY,),
    )


def _virtual_machines() -> Finding:
    """Create a virtual machine without a processor. No sandbox of this machine uses one yet."""
    try:
        with open(_KVM, "rb+", buffering=0) as device:  # noqa: PTH123 - a device
            os.close(fcntl.ioctl(device, _KVM_CREATE_VM, 0))
        problem = ""
    except OSError as error:
        problem = f"{_KVM}: {error.strerror}"
    return Finding(
        check="virtual machines",
        status="warn" if problem else "ok",
        detail=problem or f"{_KVM} creates them",
        remedies=(_KVM_REMEDY,),
    )


def _disk(jobs_dir: os.PathLike[str]) -> Finding:
    path = os.fspath(jobs_dir) if os.path.isdir(jobs_dir) else "."  # noqa: PTH112 - any PathLike
    free = shutil.disk_usage(path).free / 1e9
    low = free < _LOW_DISK_GB
    return Finding(
        check="disk",
        status="warn" if low else "ok",
        detail=f"{free:.1f} GB free",
        remedies=("free some disk space",) if low else (),
    )


def _keys() -> Finding:
    names = [name for name in _KEYS if os.environ.get(name)]
    return Finding(check="keys", status="ok", detail=", ".join(names) or "none set")


async def _sandboxes(config: RunConfig) -> list[Finding]:
    if {"sandbox.provider", "sandbox.import_path", "sandbox.host"} & origins().keys():
        return [finding async for finding in _sandbox(config)]
    findings: list[Finding] = []
    some_can_grade = False
    for name in Registry().names("benchflow.sandboxes"):
        chosen = config.sandbox.model_copy(update={"provider": name})
        one = config.model_copy(update={"sandbox": chosen})
        results = [each async for each in _sandbox(one)]
        some_can_grade = some_can_grade or all(each.status != "fail" for each in results)
        findings += results
    return [_as_warning(each) if some_can_grade else each for each in findings]


def _as_warning(finding: Finding) -> Finding:
    return finding.model_copy(update={"status": "warn"}) if finding.status == "fail" else finding


async def _sandbox(config: RunConfig) -> AsyncIterator[Finding]:
    name = f"sandbox {config.sandbox.label}"
    try:
        async with open_provider(config) as provider:
            await provider.ready()
            yield await _isolation(name, provider)
            yield await _orphans(name, provider)
    except BenchFlowError as error:
        yield Finding(check=name, status="fail", detail=str(error), remedies=(error.hint,))


async def _isolation(name: str, provider: SandboxProvider) -> Finding:
    capabilities = await provider.capabilities()
    consistency = (
        f" ({capabilities.snapshot_consistency})" if capabilities.snapshot_consistency else ""
    )
    parts = [
        f"isolation {capabilities.isolation}",
        f"snapshots {', '.join(sorted(capabilities.snapshot_levels)) or 'none'}{consistency}",
        f"network {', '.join(sorted(capabilities.network_modes)) or 'none'}",
        f"limits {', '.join(sorted(capabilities.resource_limits)) or 'none'}",
        f"freeze {capabilities.freeze}",
        f"live forks {capabilities.live_engine or 'no'}",
    ]
    if capabilities.freeze == "none" and not capabilities.kill_all:
        parts.append("nothing can be graded: a sandbox can neither be frozen nor emptied")
    return Finding(
        check=name,
        status=_status(provider, capabilities),
        detail="; ".join(parts),
        remedies=tuple(f"{key}: {note}" for key, note in sorted(capabilities.notes.items())),
    )


def _status(provider: SandboxProvider, capabilities: SandboxCapabilities) -> Status:
    """Return a warning if the probe found something missing that other machines can have."""
    if capabilities.freeze == "none" and not capabilities.kill_all:
        return "fail"
    notes = set(capabilities.notes.items())
    if isinstance(provider, BaseProvider):
        notes -= set(provider.static_capabilities.notes.items())
    return "warn" if notes else "ok"


async def _orphans(name: str, provider: SandboxProvider) -> Finding:
    dead = [record.id async for record in provider.sandboxes() if record.owner_alive is False]
    return Finding(
        check=f"{name} left-overs",
        status="warn" if dead else "ok",
        detail=f"{len(dead)} of ended runs",
        remedies=("run `bench sandbox prune`",) if dead else (),
    )
