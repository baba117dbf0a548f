"""A task and a configuration of sessions that cost little."""

from pathlib import Path
from typing import Any

from benchflow_engine.config import AgentConfig, RewardConfig, RunConfig, SandboxConfig
from benchflow_engine.scaffold import write_task
from benchflow_testing.fakes import FakeReward, FakeSandboxProvider


def provider(**_: object) -> FakeSandboxProvider:
    """Return sandboxes in memory."""
    return FakeSandboxProvider()


def rewards(_task: object, **_: object) -> list[Any]:
    """Return one reward, which gives 0.5 to everything."""
    return [FakeReward(0.5)]


def config(idle_sec: float = 600.0, sandbox: str | None = None, **more: Any) -> RunConfig:
    """Return the configuration of sessions in memory, or in a sandbox of another provider.

    A sandbox in memory has no real shell.
    """
    in_memory = SandboxConfig(import_path=f"{__name__}:provider")
    return RunConfig(
        agent=AgentConfig(idle_timeout_sec=idle_sec),
        sandbox=in_memory if sandbox is None else SandboxConfig(provider=sandbox),
        reward=RewardConfig(import_path=f"{__name__}:rewards"),
        capture_state="none",
        **more,
    )


def task_at(home: Path, *more: str) -> Path:
    """Write the task of the scaffold, with more lines of its task.toml, and return its path."""
    path = home / "task"
    write_task(path)
    with (path / "task.toml").open("a") as file:
        file.write("".join(f"{line}\n" for line in more))
    return path
