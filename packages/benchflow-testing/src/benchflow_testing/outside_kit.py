"""The conformance kit of a world outside the sandbox."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from benchflow_contracts.door import Door
from benchflow_contracts.environment import EnvironmentFactory, OutsideState, ProvisionContext
from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.outside import OutsideWorld, WorldCall, outside_world
from benchflow_contracts.sandbox import SandboxSpec

from .check import Check, CheckFailedError, CheckResult, expect, expect_equal, promise, run_checks
from .fakes import FakeSandboxProvider

_TASK = "kit"
ActThrough = Callable[[Door], Awaitable[str]]


def call_tool(tool: str, arguments: Mapping[str, Any]) -> ActThrough:
    """Return a function that calls a tool of the MCP server behind a door, and returns its text.

    The function raises an `OSError`, such as `ConnectionError`, if the server refuses or is gone.
    """
    params = {"name": tool, "arguments": dict(arguments)}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}

    def post(door: Door) -> str:
        headers = {**door.headers, "Content-Type": "application/json"}
        endpoint = door.endpoint
        with closing(HTTPConnection(endpoint.host, endpoint.port, timeout=60)) as connection:
            connection.request("POST", "/mcp", json.dumps(body), headers)
            response = connection.getresponse()
            data = response.read()
        if response.status != 200:
            raise ConnectionError(f"the tool server answered with HTTP {response.status}")
        result = json.loads(data)["result"]
        return "\n".join(block.get("text", "") for block in result["content"])

    async def act(door: Door) -> str:
        return await asyncio.to_thread(post, door)

    return act


@dataclass(frozen=True, slots=True)
class OutsideSubject:
    """A world under test, and a call of the agent that changes the world each time."""

    make: EnvironmentFactory
    act: ActThrough

    def new(self) -> OutsideWorld:
        """Return a world that is not open."""
        world = outside_world(self.make())
        if world is None:
            raise CheckFailedError("the environment is not an OutsideWorld: it has no open_doors")
        return world

    @asynccontextmanager
    async def world(
        self,
        outside: OutsideState | None = None,
        heard: list[WorldCall] | None = None,
        seed: int | None = None,
    ) -> AsyncGenerator[tuple[OutsideWorld, Door], None]:
        """Yield a provisioned world and its first door, and tear it down at the end."""
        world, provider = self.new(), FakeSandboxProvider()
        world.on_call((heard if heard is not None else []).append)
        sandbox = await provider.create(SandboxSpec())
        try:
            doors = await world.open_doors()
            context = ProvisionContext(
                sandbox=sandbox,
                task_id=_TASK,
                resumed=outside is not None,
                outside=outside,
                seed=seed,
            )
            await world.provision(context)
            yield world, doors[0]
        finally:
            await world.teardown()
            await provider.aclose()


OutsideCheck = Check[OutsideSubject]


@promise()
async def tools_and_doors_are_known_before_the_world_opens(subject: OutsideSubject) -> None:
    """Each tool server has a door at its port, and opening changes neither names nor ports."""
    async with subject.world() as (world, _):
        fresh = subject.new()
        ports = {door.port for door in fresh.doors}
        expect(bool(ports), "the world has no door")
        for server in fresh.mcp_servers:
            expect(
                any(f"127.0.0.1:{port}/" in (server.url or "") for port in ports),
                f"tool server {server.name!r} at {server.url!r} has no door",
            )
            expect(not server.headers, "a header of the tool server would enter the sandbox")
        expect(all(door.serves == "tools" for door in fresh.doors), "a door does not serve tools")
        expect_equal(world.mcp_servers, fresh.mcp_servers, "the tool servers of an open world")
        await fresh.teardown()


@promise()
async def a_tool_needs_the_headers_of_its_door(subject: OutsideSubject) -> None:
    """A caller without the headers of the door reaches nothing, and changes nothing."""
    async with subject.world() as (world, door):
        before = await world.query()
        try:
            await subject.act(door.model_copy(update={"headers": {}}))
        except (ConnectionError, OSError):
            expect_equal(await world.query(), before, "the state after a refused call")
            return
        raise CheckFailedError("a call without the headers of the door was answered")


@promise()
async def each_exchange_is_reported(subject: OutsideSubject) -> None:
    """The opening and each call are reported, with the text that the agent got."""
    heard: list[WorldCall] = []
    async with subject.world(heard=heard) as (_, door):
        text = await subject.act(door)
        expect_equal([call.operation for call in heard], ["open", "call"], "the exchanges")
        expect_equal(heard[1].result, text, "the reported text of the call")
        expect(bool(heard[1].tool), "the call has no tool")


@promise()
async def rewards_belong_to_steps(subject: OutsideSubject) -> None:
    """After `end_step`, each reward of the calls before it has its step."""
    async with subject.world() as (world, door):
        world.end_step("s1")
        await subject.act(door)
        world.end_step("s2")
        await subject.act(door)
        world.end_step("s3")
        steps = {event.step_id for event in world.reward_events()}
        expect(steps <= {"s2", "s3"}, f"rewards of two calls belong to the steps {steps}")


def _lacks_snapshots(subject: OutsideSubject) -> str | None:
    kind = getattr(subject.make(), "world_snapshots", None)
    return "not claimed: snapshots 'none'" if kind == "none" else None


@promise(_lacks_snapshots)
async def a_child_reaches_the_state_of_its_parent(subject: OutsideSubject) -> None:
    """A session from a captured state observes and earned the same, and reports no repetition."""
    heard: list[WorldCall] = []
    async with subject.world() as (parent, door):
        await subject.act(door)
        parent.end_step("s1")
        async with parent.quiesce():
            state, there = await parent.capture(), await parent.query()
        expect_equal(state.kind, parent.world_snapshots, "the kind of the state")
        copy = OutsideState.model_validate_json(state.model_dump_json())
        async with subject.world(copy, heard) as (child, _):
            expect_equal(await child.query(), there, "the child's state")
            await child.check(there)
            expect_equal(list(child.reward_events()), list(parent.reward_events()), "the rewards")
            expect_equal(child.prompt, parent.prompt, "the prompt")
            expect_equal(heard, [], "the reported exchanges of a repetition")


@promise(_lacks_snapshots)
async def worlds_of_one_seed_are_equal(subject: OutsideSubject) -> None:
    """With the seed of the rollout, two sessions observe the same; a child repeats its parent."""
    texts: list[str] = []
    states: list[OutsideState] = []
    for _ in range(2):
        async with subject.world(seed=11) as (world, door):
            texts.append(await subject.act(door))
            states.append(await world.capture())
    expect_equal(texts[1], texts[0], "the text of a second session with the seed")
    expect_equal(states[1].digest, states[0].digest, "the state of a second session")
    async with subject.world(states[0], seed=11) as (child, _):
        expect_equal((await child.capture()).digest, states[0].digest, "the state of a child")


@promise(_lacks_snapshots)
async def a_child_is_independent_of_its_parent(subject: OutsideSubject) -> None:
    """Neither sees the calls of the other one, and a state may be used twice."""
    async with subject.world() as (parent, door):
        await subject.act(door)
        state, there = await parent.capture(), await parent.query()
        async with subject.world(state) as (child, inner):
            await subject.act(inner)
            expect(await child.query() != there, "a call of the child does not show in its state")
            expect_equal(await parent.query(), there, "the parent's state")
        async with subject.world(state) as (second, _):
            expect_equal(await second.query(), there, "the state of a second child")


@promise()
async def another_state_is_refused(subject: OutsideSubject) -> None:
    """`check` passes with the current state, and fails with the state before a call."""
    async with subject.world() as (world, door):
        before = await world.query()
        await world.check(before)
        await subject.act(door)
        try:
            await world.check(before)
        except SnapshotError:
            return
        raise CheckFailedError("an old state passed as the current state")


@promise()
async def a_world_without_snapshots_refuses_to_be_captured(subject: OutsideSubject) -> None:
    """A world that declares `none` raises `SnapshotError`, and others return a state."""
    async with subject.world() as (world, _):
        try:
            await world.capture()
        except SnapshotError:
            expect_equal(world.world_snapshots, "none", "the declaration")
        else:
            expect(world.world_snapshots != "none", "a world with snapshots 'none' was captured")


@promise()
async def no_call_reaches_a_world_that_is_over(subject: OutsideSubject) -> None:
    """After `finish` the episode is over: calls change neither state nor rewards."""
    async with subject.world() as (world, door):
        await subject.act(door)
        await world.finish([])
        await world.finish([])
        expect(world.terminal, "the episode is not over after `finish`")
        before, rewards = await world.query(), list(world.reward_events())
        await subject.act(door)
        expect_equal(await world.query(), before, "the state after a late call")
        expect_equal(list(world.reward_events()), rewards, "the rewards after a late call")


@promise()
async def worlds_do_not_share_doors(subject: OutsideSubject) -> None:
    """Two worlds at one time have doors to different servers or with different headers."""
    async with subject.world() as (first, door), subject.world() as (_, other):
        expect(
            (door.upstream, door.headers) != (other.upstream, other.headers),
            "two worlds have the same door",
        )
        before = await first.query()
        await subject.act(other)
        expect_equal(await first.query(), before, "the other world's state")


@promise()
async def a_closed_world_answers_nobody(subject: OutsideSubject) -> None:
    """`teardown` closes the doors, may be repeated, and needs no opening before."""
    unopened = subject.new()
    await unopened.teardown()
    async with subject.world() as (world, door):
        await world.teardown()
        await world.teardown()
        try:
            await subject.act(door)
        except (ConnectionError, OSError):
            return
        raise CheckFailedError("a call was answered after the teardown")


_CHECKS: tuple[OutsideCheck, ...] = (
    tools_and_doors_are_known_before_the_world_opens,
    a_tool_needs_the_headers_of_its_door,
    each_exchange_is_reported,
    rewards_belong_to_steps,
    a_child_reaches_the_state_of_its_parent,
    worlds_of_one_seed_are_equal,
    a_child_is_independent_of_its_parent,
    another_state_is_refused,
    a_world_without_snapshots_refuses_to_be_captured,
    no_call_reaches_a_world_that_is_over,
    worlds_do_not_share_doors,
    a_closed_world_answers_nobody,
)


def outside_checks() -> list[OutsideCheck]:
    """Return every check; `str(check)` is its name."""
    return list(_CHECKS)


async def check_outside_world(
    make: EnvironmentFactory,
    act: ActThrough,
    *,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks against the worlds of `make`.

    `act` is a call of the agent through a door, such as `call_tool("add", {})`. Each call must
    change what the world says, and at least three calls must be possible in an episode.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    return await run_checks(_CHECKS, OutsideSubject(make, act), only=only, on_result=on_result)
