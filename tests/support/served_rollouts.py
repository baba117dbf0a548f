"""The parts of a rollout that costs little, for tests of the rollout service."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from benchflow_contracts import RolloutNode, Task, VerifyResult
from benchflow_engine.config import AgentConfig, RewardConfig, RunConfig, SandboxConfig
from benchflow_engine.scaffold import write_task
from benchflow_serve import RolloutService, ServeSettings
from benchflow_serve_client import RolloutRequest, RolloutStatus
from benchflow_testing.fakes import FakeAgent, FakeReward, FakeSandboxProvider, Say

TASK = "bench/served"
_agents = count(1)


def provider(**_: object) -> FakeSandboxProvider:
    """Return sandboxes in memory."""
    return FakeSandboxProvider()


def quick_agent() -> FakeAgent:
    """Return an agent that ends at once."""
    return FakeAgent([[Say("done")]])


def hanging_agent() -> FakeAgent:
    """Return an agent whose turn never ends."""
    return FakeAgent([[Say("done")]], hang_on={"prompt"})


def third_hangs() -> FakeAgent:
    """Return an agent that ends at once; each third one never ends."""
    return hanging_agent() if next(_agents) % 3 == 0 else quick_agent()


def rewards(_task: object, **_: object) -> list[Any]:
    """Return one reward, which gives 0.5 to everything."""
    return [FakeReward(0.5)]


class Places:
    """Rewards each leaf with its place in the group."""

    name = "reward"

    async def score_group(
        self, task: Task, leaves: Sequence[RolloutNode]
    ) -> Sequence[VerifyResult]:
        """Return the places, from 1."""
        assert task.id == TASK
        return [VerifyResult(reward=float(at)) for at, _ in enumerate(leaves, 1)]


class AllPlaces(Places):
    """Rewards only whole groups."""

    needs_all_members = True


def config(agent: str = "quick_agent", group_reward: str | None = None, **more: Any) -> RunConfig:
    """Return the configuration of rollouts in memory."""
    return RunConfig(
        agent=AgentConfig(import_path=f"{__name__}:{agent}"),
        sandbox=SandboxConfig(import_path=f"{__name__}:provider"),
        reward=RewardConfig(
            import_path=f"{__name__}:rewards",
            group_import_path=group_reward and f"{__name__}:{group_reward}",
        ),
        capture_state="none",
        **more,
    )


def settings_at(
    home: Path, agent: str = "quick_agent", group_reward: str | None = None, **more: Any
) -> ServeSettings:
    """Return the settings of a service with one task below `home`."""
    if not (home / "task").exists():
        write_task(home / "task")
        path = home / "task/task.toml"
        name = f'name = "{TASK}"'
        lines = path.read_text().splitlines()
        path.write_text("\n".join([name if x.startswith("name") else x for x in lines]) + "\n")
    return ServeSettings(
        tasks_dirs=(home / "task",),
        directory=home / "serve",
        config=config(agent, group_reward),
        no_auth=True,
        **more,
    )


@asynccontextmanager
async def open_service(settings: ServeSettings) -> AsyncGenerator[RolloutService]:
    """Yield a service that runs."""
    service = RolloutService(settings)
    async with service.running():
        yield service


async def wait_for(service: RolloutService, ident: str, kind: str) -> None:
    """Wait for an event of a rollout."""
    async with asyncio.timeout(30):
        async for event in service.events(ident):
            if event is not None and event.kind == kind:
                return
    raise AssertionError(f"rollout {ident} ended without {kind!r}")


async def wait_for_sandbox(service: RolloutService) -> None:
    """Wait until a rollout has its sandbox."""
    async with asyncio.timeout(30):
        while not (await service.capacity()).sandboxes:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.01)


async def run_one(service: RolloutService, **fields: Any) -> RolloutStatus:
    """Run one rollout to its end."""
    status = await service.submit(RolloutRequest(task=TASK, **fields))
    await wait_for(service, status.id, "ended")
    return service.status(status.id)
