"""A rollout on fakes: what the lifecycle and branch tests share."""

import asyncio
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import (
    Event,
    Role,
    RolloutTree,
    Task,
    TaskConfig,
    TaskStep,
)
from benchflow_kernel import (
    AskUserBranch,
    ModelConfig,
    Planes,
    RolloutConfig,
    Scene,
    fold,
    read_events,
    run_rollout,
    tree_to_bytes,
)
from benchflow_testing.fakes import (
    FAKE_WITHOUT_LIVE,
    FakeAgent,
    FakeEnvironment,
    FakeModelGateway,
    FakeReward,
    FakeSandboxProvider,
    FakeUserModel,
    Say,
)

sys.path.insert(0, str(Path(__file__).parent))
from booking import booked, booking_agent


class Rig:
    """One task, one fake of every plane, and the record of what ran."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "rollout"
        self.task_dir = tmp_path / "task"
        self.task_dir.mkdir()
        self.provider = FakeSandboxProvider(capabilities=FAKE_WITHOUT_LIVE)
        self.agent = FakeAgent([[Say("done")]])
        self.agents: dict[str, Any] | None = None
        self.rewards: list[Any] = [FakeReward(1.0)]
        self.environments: list[FakeEnvironment] = []
        self.environment_options: dict[str, Any] = {}
        self.users: list[FakeUserModel] = []
        self.user_options: dict[str, Any] = {}
        self.task_config: dict[str, Any] = {"name": "demo"}
        self.steps: tuple[TaskStep, ...] = ()
        self.config: dict[str, Any] = {"scenes": (Scene(roles=(Role(agent="fake"),)),)}
        self.events: list[Event] = []
        self.with_environment = True
        self.gateway: FakeModelGateway | None = None

    def task(self) -> Task:
        return Task(
            id="demo",
            path=self.task_dir,
            instruction="do it",
            config=TaskConfig.model_validate(self.task_config),
            digest="sha256:0",
            steps=self.steps,
        )

    def live(self) -> None:
        """Let the sandboxes be forked live."""
        self.provider = FakeSandboxProvider()

    def again(self, name: str) -> None:
        """Make ready for another rollout, with a record of its own."""
        self.directory = self.directory.with_name(name)
        self.events.clear()

    def planes(self) -> Planes:
        if "model" in self.config:
            self.provider.add_capabilities(doors="tunnel")
        return Planes(
            provider=self.provider,
            agents=self.agents or {"fake": self.agent},
            rewards=self.rewards,
            environment=self._environment_factory() if self.with_environment else None,
            user=self._user,
            gateway=self.gateway,
        )

    def _environment_factory(self) -> Callable[[], FakeEnvironment]:
        """The plan asks the first environment for the spec; the worlds have the others."""
        calls = count()

        def environment() -> FakeEnvironment:
            if next(calls) == 0:
                return FakeEnvironment(**self.environment_options)
            return self._environment()

        return environment

    def _environment(self) -> FakeEnvironment:
        self.environments.append(FakeEnvironment(**self.environment_options))
        return self.environments[-1]

    def _user(self) -> FakeUserModel:
        self.users.append(FakeUserModel(**self.user_options))
        return self.users[-1]

    async def run_async(self) -> RolloutTree:
        return await run_rollout(
            self.task(),
            RolloutConfig(**self.config),
            self.planes(),
            rollout_id="r1",
            directory=self.directory,
            subscribers=[self.events.append],
        )

    def run(self) -> RolloutTree:
        tree = asyncio.run(self.run_async())
        self.check_clean()
        self.check_record(tree)
        return tree

    def check_clean(self) -> None:
        """Nothing that the rollout started is left."""
        assert self.provider.live == []
        assert len(self.provider.images) == 0
        assert all(session.closed for session in self.agent.sessions)
        assert all(user.closed for user in self.users)
        for environment in self.environments:
            if "provision" in environment.log:
                assert "teardown" in environment.log

    def check_record(self, tree: RolloutTree) -> None:
        """The file, read again, is the tree that was returned."""
        read = read_events(self.directory / "events.jsonl")
        assert read.torn_bytes == 0
        assert list(read.events) == self.events
        assert tree_to_bytes(fold(read.events)) == tree_to_bytes(tree)
        assert (self.directory / "tree.json").read_bytes() == tree_to_bytes(tree)

    @property
    def phases(self) -> list[str]:
        return [event.phase for event in self.events if event.kind == "phase_entered"]

    def deadlines(self, **seconds: float) -> None:
        self.config["deadlines"] = seconds


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    # Slots of its own: children that other processes run on this machine do not count.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return Rig(tmp_path)


@pytest.fixture
def forked(rig: Rig) -> Rig:
    """A rollout that forks where its agent asks for the day."""
    rig.agent = booking_agent()
    rig.environment_options["tables"] = {"events": []}
    rig.rewards = [FakeReward(booked)]
    rig.config["branch"] = AskUserBranch()
    return rig


@pytest.fixture
def with_model():
    """Give a rig a gateway, and its agent a model to call through it."""

    def give(rig: Rig) -> FakeModelGateway:
        rig.gateway = FakeModelGateway()
        rig.config["model"] = ModelConfig(base_url="http://127.0.0.1:9/v1")
        return rig.gateway

    return give
