"""The backend without Ray: nodes are tasks here, and their faults are exact."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import CapacityError, Completion, Dispatch, UsageError
from benchflow_jobs_ray import NoNodeError, RayBackend, RayStartError, backend, connection, node
from benchflow_jobs_ray.host import WorkerHost, open_executor
from benchflow_kernel import Registry
from benchflow_testing import (
    BackendCheck,
    BackendSubject,
    backend_checks,
    resizable_backend_checks,
    run_check,
)
from benchflow_testing.fakes import FakeExecutor
from ray.exceptions import ActorDiedError, ActorUnavailableError

EXECUTOR = "benchflow_testing.fakes:FakeExecutor"


class Actor:
    """A `WorkerHost` that can be killed or cut off, behind the interface of Ray's handles."""

    def __init__(self, *arguments: Any) -> None:
        self.host = WorkerHost(*arguments)
        self.is_cut_off = False
        self.calls: set[asyncio.Task[Any]] = set()
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        class Method:
            @staticmethod
            def remote(*arguments: Any) -> Awaitable[Any]:
                return self._call(getattr(self.host, name), arguments)

        return Method

    def kill(self) -> None:
        self.is_dead = True
        for task in self.calls:
            task.cancel()

    def _call(self, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Awaitable[Any]:
        async def call() -> Any:
            if self.is_dead:
                raise ActorDiedError
            if self.is_cut_off:
                raise ActorUnavailableError("it does not answer", b"\0" * 16)
            try:
                return await method(*arguments)
            except asyncio.CancelledError:
                if self.is_dead:
                    raise ActorDiedError from None
                raise

        task = asyncio.get_running_loop().create_task(call())
        self.calls.add(task)
        task.add_done_callback(self.calls.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task


class Nodes:
    """A cluster of nodes by name, in place of `connection`."""

    def __init__(self, **slots: int) -> None:
        self.alive: dict[str, dict[str, int]] | None = {n: {"slots": s} for n, s in slots.items()}
        self.actors: dict[str, Actor] = {}
        self.ended: list[Any] = []

    async def connect(self, address: str, seconds: float) -> bool:
        return True

    async def disconnect(self) -> None:
        for actor in self.actors.values():
            actor.kill()

    async def alive_nodes(self) -> dict[str, dict[str, int]] | None:
        return self.alive

    def create_actor(self, name: str, slots: int, *arguments: Any) -> Actor:
        self.actors[name] = Actor(*arguments)
        return self.actors[name]

    async def end_actors(self, actors: list[Any]) -> None:
        self.ended = list(actors)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Nodes]:
    monkeypatch.setattr(backend, "_WATCH_SEC", 0.02)
    monkeypatch.setattr(node, "_PROBE_SEC", 0.02)

    def make(**slots: int) -> Nodes:
        nodes = Nodes(**slots)
        for name in ("connect", "disconnect", "alive_nodes", "create_actor", "end_actors"):
            monkeypatch.setattr(connection, name, getattr(nodes, name))
        return nodes

    return make


@pytest.mark.parametrize("check", [*backend_checks(), *resizable_backend_checks()], ids=str)
def test_the_backend_keeps_the_promises(
    check: BackendCheck, use: Callable[..., Nodes], tmp_path: Path
) -> None:
    use(a=4, b=4)
    subject = BackendSubject(lambda capacity: RayBackend(EXECUTOR, capacity, address="x"), tmp_path)
    asyncio.run(run_check(check, subject)).raise_if_failed()


def dispatch(directory: Path, index: int, attempt: int = 1, do: str = "wait") -> Dispatch:
    return Dispatch(
        job="j",
        index=index,
        slot=f"s{index}",
        attempt=attempt,
        epoch=1,
        rollout=f"r{index}-{attempt}",
        payload={"do": do, "at": str(directory)},
    )


@asynccontextmanager
async def started(**options: Any) -> AsyncIterator[RayBackend]:
    ray = RayBackend(EXECUTOR, address="x", **{"lease_sec": 0.3, "start_sec": 5, **options})
    await ray.start()
    try:
        yield ray
    finally:
        async with asyncio.timeout(30):
            await ray.close()


async def take(completions: AsyncIterator[Completion], count: int) -> list[tuple[int, int, str]]:
    async with asyncio.timeout(30):
        found = [await anext(completions) for _ in range(count)]
    return [(each.index, each.attempt, each.status) for each in found]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


def test_a_dead_actor_is_replaced_and_its_attempts_are_lost(
    use: Callable[..., Nodes], tmp_path: Path
) -> None:
    async def scenario() -> None:
        nodes = use(a=2)
        async with started() as ray:
            completions = ray.completions()
            for index in (0, 1):
                await ray.submit(dispatch(tmp_path, index))
            await until((tmp_path / "r1-1.started").exists)
            first = nodes.actors["a"]
            first.kill()
            assert sorted(await take(completions, 2)) == [(0, 1, "lost"), (1, 1, "lost")]
            await ray.submit(dispatch(tmp_path, 0, attempt=2, do="score"))
            assert await take(completions, 1) == [(0, 2, "scored")]
            assert nodes.actors["a"] is not first

    asyncio.run(scenario())


def test_an_actor_that_does_not_answer_is_fenced_and_a_late_end_is_reported(
    use: Callable[..., Nodes], tmp_path: Path
) -> None:
    async def scenario() -> None:
        nodes = use(a=2, b=2)
        async with started(capacity={"slots": 2}) as ray:
            completions = ray.completions()
            ticket = await ray.submit(dispatch(tmp_path, 0))
            await until((tmp_path / "r0-1.started").exists)
            nodes.actors[ticket.worker].is_cut_off = True
            assert await take(completions, 1) == [(0, 1, "lost")]
            second = await ray.submit(dispatch(tmp_path, 0, attempt=2, do="score"))
            assert second.worker != ticket.worker
            assert await take(completions, 1) == [(0, 2, "scored")]
            nodes.actors[ticket.worker].is_cut_off = False
            # Its lease has expired, or the backend ends it: it does not run on.
            assert await take(completions, 1) == [(0, 1, "cancelled")]
            assert (tmp_path / "r0-1.cancelled").exists()
            await until(lambda: len([1 for each in nodes.actors.values() if each.calls]) == 2)
            third = [await ray.submit(dispatch(tmp_path, index)) for index in (1, 2)]
            assert {each.worker for each in third} == {"a", "b"}

    asyncio.run(scenario())


def test_a_score_of_a_lost_attempt_is_reported_once_more(
    use: Callable[..., Nodes], tmp_path: Path
) -> None:
    async def scenario() -> None:
        nodes = use(a=1)
        async with started(lease_sec=20) as ray:
            completions = ray.completions()
            await ray.submit(dispatch(tmp_path, 0))
            await until((tmp_path / "r0-1.started").exists)
            nodes.actors["a"].is_cut_off = True
            # What is read fails at the next call, so let the call that waits return.
            nodes.actors["a"].host._news.set()
            assert await take(completions, 1) == [(0, 1, "lost")]
            (tmp_path / "r0-1.go").touch()
            await until(lambda: bool(nodes.actors["a"].host._unread))
            nodes.actors["a"].is_cut_off = False
            assert await take(completions, 1) == [(0, 1, "scored")]
            await ray.submit(dispatch(tmp_path, 1, do="score"))
            assert await take(completions, 1) == [(1, 1, "scored")]

    asyncio.run(scenario())


def test_nodes_join_and_leave_while_the_job_runs(use: Callable[..., Nodes], tmp_path: Path) -> None:
    seen: list[int] = []

    async def scenario() -> None:
        nodes = use(a=1)
        async with started(on_capacity=lambda each: seen.append(each.get("slots", 0))) as ray:
            completions = ray.completions()
            await ray.submit(dispatch(tmp_path, 0))
            nodes.alive = {"a": {"slots": 1}, "b": {"slots": 2}}
            await ray.submit(dispatch(tmp_path, 1))
            assert ray.capacity() == {"slots": 3}
            await until((tmp_path / "r1-1.started").exists)
            nodes.alive = {"a": {"slots": 1}}
            assert await take(completions, 1) == [(1, 1, "lost")]
            (tmp_path / "r0-1.go").touch()
            assert await take(completions, 1) == [(0, 1, "scored")]

    asyncio.run(scenario())
    assert seen == [1, 3, 1]


def test_a_head_that_does_not_answer_for_a_while_ends_nothing(
    use: Callable[..., Nodes], tmp_path: Path
) -> None:
    async def scenario() -> None:
        nodes = use(a=1)
        async with started() as ray:
            await ray.submit(dispatch(tmp_path, 0))
            await until((tmp_path / "r0-1.started").exists)
            alive, nodes.alive = nodes.alive, None
            await asyncio.sleep(0.1)
            nodes.alive = alive
            (tmp_path / "r0-1.go").touch()
            assert await take(ray.completions(), 1) == [(0, 1, "scored")]

    asyncio.run(scenario())


def test_a_head_that_is_lost_ends_all_and_stops_the_job(
    use: Callable[..., Nodes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_HEAD_SEC", 0.1)

    async def scenario() -> None:
        nodes = use(a=1)
        async with started() as ray:
            await ray.submit(dispatch(tmp_path, 0))
            await until((tmp_path / "r0-1.started").exists)
            nodes.alive = None
            assert await take(ray.completions(), 1) == [(0, 1, "lost")]
            with pytest.raises(NoNodeError, match="the head of the Ray cluster does not answer"):
                await ray.submit(dispatch(tmp_path, 0, attempt=2))
        # Ray would wait for its head.
        assert nodes.ended == []

    asyncio.run(scenario())
    assert NoNodeError.stops_job


def test_a_job_without_nodes_refuses_attempts_after_a_while(
    use: Callable[..., Nodes], tmp_path: Path
) -> None:
    async def scenario() -> None:
        nodes = use(a=1)
        async with started(start_sec=0.2) as ray:
            nodes.alive = {}
            await until(lambda: not ray.workers)
            with pytest.raises(CapacityError, match="no node of the Ray cluster is left"):
                await ray.submit(dispatch(tmp_path, 0))

    asyncio.run(scenario())


def test_a_start_without_nodes_or_with_a_wrong_executor_ends_with_its_cause(
    use: Callable[..., Nodes],
) -> None:
    async def scenario() -> None:
        nodes = use()
        with pytest.raises(RayStartError, match="no node of the Ray cluster had free slots"):
            await RayBackend(EXECUTOR, address="x", start_sec=0.1).start()
        nodes.alive = {"a": {"slots": 1}}
        with pytest.raises(UsageError, match=r"no node can run 'gone:x': .*gone"):
            await RayBackend("gone:x", address="x").start()
        assert nodes.ended == [nodes.actors["a"]]

    asyncio.run(scenario())


@asynccontextmanager
async def opened_executor(kind: str) -> AsyncIterator[FakeExecutor]:
    executor = FakeExecutor()
    yield executor
    assert kind == "closed at the end"
    executor.dispatches.clear()


instance = FakeExecutor()


def test_an_executor_is_an_object_a_class_or_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setitem(sys.modules, "executors_here", sys.modules[__name__])
        async with open_executor("executors_here:instance", {}) as executor:
            assert executor is instance
        async with open_executor(EXECUTOR, {}) as executor:
            assert isinstance(executor, FakeExecutor)
        block = {"kind": "closed at the end"}
        async with open_executor("executors_here:opened_executor", block) as executor:
            assert isinstance(executor, FakeExecutor)
        for path in ("json:dumps", "sys:maxsize", "nocolon", "json:gone"):
            with pytest.raises((UsageError, TypeError)):
                async with open_executor(path, {}):
                    pass

    asyncio.run(scenario())


class Unsendable(FakeExecutor):
    async def run(self, dispatch: Dispatch, on_event: Any) -> Completion:
        completion = await super().run(dispatch, on_event)
        return completion.model_copy(update={"record": {"at": object()}})


def test_a_record_that_cannot_be_sent_is_an_unscored_completion(
    use: Callable[..., Nodes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchflow_testing.fakes.FakeExecutor", Unsendable)

    async def scenario() -> None:
        use(a=1)
        async with started() as ray:
            await ray.submit(dispatch(tmp_path, 0, do="score"))
            completion = await anext(ray.completions())
            assert completion.status == "unscored"
            assert completion.error is not None
            assert completion.error.type == "UnsendableRecordError"

    asyncio.run(scenario())


def test_the_backend_is_found_by_its_name() -> None:
    assert Registry().resolve("benchflow.backends", "ray") is RayBackend
