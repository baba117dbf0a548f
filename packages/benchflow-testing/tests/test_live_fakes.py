"""The fakes of a live fork: processes, sessions, services, saved images, the gateway."""

import asyncio
import json

import pytest
from benchflow_contracts import (
    AgentError,
    Answer,
    CallBudget,
    Endpoint,
    EnvironmentError_,
    ProvisionContext,
    Role,
    SandboxError,
    SandboxSpec,
    SandboxUnsupportedError,
    SessionState,
    SnapshotError,
)
from benchflow_testing.fakes import (
    FAKE_WITHOUT_LIVE,
    Act,
    FakeAgent,
    FakeEnvironment,
    FakeModelGateway,
    FakeProgram,
    FakeSandbox,
    FakeSandboxProvider,
    Pose,
    Say,
    ask_with_options,
)


class Counter(FakeProgram):
    """Numbers each line that it is given, and notes it in a file."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def line(self, line: bytes) -> None:
        self.count += 1
        self.files.put("/count", str(self.count))
        self.write(b"%d %s\n" % (self.count, line))


async def settle() -> None:
    """Let everything inside run until it waits: it has no clock and no input but ours."""
    for _ in range(200):
        await asyncio.sleep(0)


async def forked(box: FakeSandbox) -> FakeSandbox:
    async with box.freeze():
        image = await box.snapshot("live")
    child = await box.provider.create(box.spec, image=image)
    await box.provider.discard(image)
    return child


def test_a_live_child_has_its_own_copy_of_a_process_and_of_its_unread_output():
    async def main() -> None:
        provider = FakeSandboxProvider()
        provider.on_spawn("counter", Counter())
        box = await provider.create(SandboxSpec())
        process = await box.spawn("counter")
        await process.stdin.write(b"a\nb\n")
        await settle()
        children = [await forked(box), await forked(box)]
        grand = await forked(children[0])
        await process.stdin.write(b"mine\n")
        assert await process.stdout.read() == b"1 a\n2 b\n"
        assert await process.stdout.read_line() == b"3 mine\n"
        for at, child in enumerate([*children, grand]):
            held = await child.attach(process.id)
            assert (held.id, held.stdout.waiting()) == (process.id, 8)
            with pytest.raises(SandboxError, match="no copied process"):
                await child.attach(process.id)
            assert await held.stdout.read() == b"1 a\n2 b\n"
            await held.stdin.write(b"x\ny\n"[: 2 + 2 * (at == 1)])
            assert await held.stdout.read_line() == b"3 x\n"
        assert await held.stdin.aclose() is None
        assert await held.wait() == 0
        assert box.files.read("/count") == b"3"
        assert process.group.alive
        await provider.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    "text",
    [
        "cat",
        "echo [$1] >/dev/null; while :; do cat; sleep 0; done",
        "if true; then (cd /tmp; sh -c 'cat | cat' | cat); fi",
        "A=1 sh -c 'cat; echo $A'",
    ],
)
def test_a_shell_continues_inside_its_script(text):
    async def main() -> list[bytes]:
        provider = FakeSandboxProvider()
        box = await provider.create(SandboxSpec())
        process = await box.spawn(f"echo start; {text}; echo end")
        assert await process.stdout.read_line() == b"start\n"
        await process.stdin.write(b"one\n")
        await settle()
        child = await forked(await forked(box))
        held = await child.attach(process.id)
        await held.stdin.write(b"two\n")
        if "while" not in text:
            await held.stdin.aclose()
        await process.stdin.aclose()
        seen = b""
        while not seen.endswith((b"end\n", b"two\n")):
            seen += await held.stdout.read()
        if b"end" not in seen and "while" not in text:
            seen += await held.stdout.read()
        await provider.aclose()
        return seen.split()

    seen = asyncio.run(main())
    assert seen[:2] == [b"one", b"two"]
    assert b"start" not in seen


def test_a_frozen_sandbox_handles_nothing_and_its_stdin_is_captured():
    async def main() -> None:
        provider = FakeSandboxProvider()
        provider.on_spawn("counter", Counter())
        box = await provider.create(SandboxSpec())
        process = await box.spawn("counter")
        async with box.freeze():
            await process.stdin.write(b"a\n")
            await settle()
            assert process.stdout.waiting() == 0
            image = await box.snapshot("live")
        child = await provider.create(box.spec, image=image)
        assert await (await child.attach(process.id)).stdout.read_line() == b"1 a\n"
        assert await process.stdout.read_line() == b"1 a\n"
        await provider.aclose()

    asyncio.run(main())


def test_a_failed_copy_is_refused_and_leaves_no_files():
    async def forever(call, streams) -> int:
        await asyncio.Event().wait()
        return 0

    async def main() -> None:
        provider = FakeSandboxProvider()
        provider.on_spawn("server", forever)
        box = await provider.create(SandboxSpec())
        await box.spawn("server")
        with pytest.raises(SnapshotError, match="coroutine"):
            await box.snapshot("live")
        assert len(provider.images) == 0
        provider.faults.fail_on["snapshot:live"] = SnapshotError("no memory")
        with pytest.raises(SnapshotError, match="no memory"):
            await box.snapshot("live")
        await box.snapshot("filesystem")
        await provider.aclose()
        denying = FakeSandboxProvider(capabilities=FAKE_WITHOUT_LIVE)
        box = await denying.create(SandboxSpec())
        for call in (box.snapshot("live"), box.attach("process-1")):
            with pytest.raises(SandboxUnsupportedError):
                await call

    asyncio.run(main())


def test_a_saved_live_image_outlives_its_provider(tmp_path):
    async def main() -> None:
        first = FakeSandboxProvider()
        box = await first.create(SandboxSpec())
        process = await box.spawn("echo 1 > f; cat")
        await process.stdin.write(b"held\n")
        await settle()
        image = await box.snapshot("live")
        await first.save(image, tmp_path / "saved")
        with pytest.raises(SnapshotError, match="cannot be saved"):
            await first.save(image, tmp_path / "saved" / "image.json" / "in")
        await first.aclose()
        second = FakeSandboxProvider()
        loaded = await second.load(tmp_path / "saved")
        child = await second.create(SandboxSpec(), image=loaded)
        assert await (await child.attach(process.id)).stdout.read() == b"held\n"
        assert (await child.exec("cat f")).stdout == "1\n"
        with pytest.raises(SnapshotError, match="is of provider"):
            await FakeSandboxProvider(name="other").load(tmp_path / "saved")
        with pytest.raises(SnapshotError, match="not a saved snapshot"):
            await second.load(tmp_path)
        (tmp_path / "saved" / "machine.pickle").write_bytes(b"torn")
        with pytest.raises(SnapshotError, match="digest differs"):
            await second.load(tmp_path / "saved")
        await second.aclose()

    asyncio.run(main())


async def note(session) -> str:
    answer = session.answers[-1].selected["q1"][0]
    await session.sandbox.exec(f"echo {answer} >> /tmp/notes")
    return (await session.sandbox.exec("cat /tmp/notes")).stdout


ASKS_TWICE = [
    [
        Say("First."),
        Pose(ask_with_options("Which?", "a", "b", ident="one"), lambda _: [Act(note)]),
        Pose(ask_with_options("And?", "c", "d", ident="two"), lambda _: [Act(note), Say("Done.")]),
    ],
    [Act(note)],
]


def test_a_session_with_a_pending_ask_continues_in_each_child_with_its_own_answer():
    agent = FakeAgent(ASKS_TWICE)

    async def child_of(box: FakeSandbox, carry: SessionState, option: str) -> list[str]:
        child = await forked(box)
        session = await agent.attach(
            child, Role(), SessionState.model_validate_json(carry.model_dump_json())
        )
        assert session.steps == list(carry.steps)
        told = []
        session.on_step(told.append)

        async def later(ask):
            return Answer.choose(ask, "d")

        session.on_ask_user(later)
        assert await session.answer(Answer.choose(carry.ask, option)) == "end_turn"
        with pytest.raises(RuntimeError):
            await session.answer(Answer())
        assert session.steps == [*carry.steps, *told]
        assert told[0].answer == Answer.choose(carry.ask, option)
        assert await session.prompt("again") == "end_turn"
        await session.aclose()
        return child.files.read("/tmp/notes").decode().split()

    async def main() -> None:
        provider = FakeSandboxProvider()
        box = await provider.create(SandboxSpec())
        session = await agent.connect(box, Role())
        with pytest.raises(SnapshotError, match="not frozen"):
            await session.capture()
        with pytest.raises(RuntimeError):
            await session.answer(Answer())

        async def fork_first(ask):
            if ask.id == "two":
                async with box.freeze():
                    carry = await session.capture()
                assert carry.ask == ask
                assert await child_of(box, carry, "d") == ["a", "d", "d"]
                return Answer.choose(ask, "c")
            async with box.freeze():
                carry = await session.capture()
            assert await child_of(box, carry, "b") == ["b", "d", "d"]
            return Answer.choose(ask, "a")

        session.on_ask_user(fork_first)
        assert await session.prompt("Begin.") == "end_turn"
        assert box.files.read("/tmp/notes").decode().split() == ["a", "c"]
        async with box.freeze():
            carry = await session.capture()
        assert carry.ask is None
        child = await forked(box)
        twin = await agent.attach(child, Role(), carry)
        with pytest.raises(RuntimeError):
            await twin.answer(Answer())
        await twin.prompt("again")
        assert child.files.read("/tmp/notes").decode().split() == ["a", "c", "c"]
        other = await provider.create(box.spec)
        for agent_, at in ((FakeAgent(name="other"), child), (agent, other)):
            with pytest.raises(AgentError):
                await agent_.attach(at, Role(), carry)
        await provider.aclose()

    asyncio.run(main())


def test_a_session_is_not_captured_during_a_turn():
    seen = []

    async def carry(session) -> str:
        async with session.sandbox.freeze():
            try:
                await session.capture()
            except SnapshotError as error:
                seen.append(error.retryable)
        return "tried"

    async def main() -> None:
        provider = FakeSandboxProvider()
        box = await provider.create(SandboxSpec())
        session = await FakeAgent([[Act(carry)]]).connect(box, Role())
        await session.prompt("go")
        await provider.aclose()

    asyncio.run(main())
    assert seen == [True]


def test_a_live_fork_keeps_what_a_service_has_in_memory_and_a_restart_loses_it():
    def world() -> FakeEnvironment:
        return FakeEnvironment(
            {"mail": [(1,)]}, services=["mail"], invariant=lambda tables: len(tables["mail"]) == 1
        )

    async def main() -> None:
        provider = FakeSandboxProvider()
        box = await provider.create(SandboxSpec())
        parent = world()
        await parent.provision(ProvisionContext(sandbox=box, task_id="t"))
        parent.service("mail").memory["draft"] = ["hello"]
        async with box.freeze():
            carried = await parent.live_services()
            live, files = await box.snapshot("live"), await box.snapshot()
        parent.service("mail").memory["draft"].append("later")
        child = world()
        inside = await provider.create(box.spec, image=live)
        context = ProvisionContext(sandbox=inside, task_id="t", resumed=True, live_services=carried)
        await child.provision(context)
        assert child.service("mail").memory == {"draft": ["hello"]}
        await child.reseed(7)
        assert child.seeds == [7]
        await child.check()
        await child.world.insert("mail", (2,))
        with pytest.raises(EnvironmentError_, match="invariant"):
            await child.check()
        await parent.check()
        restarted = world()
        inside = await provider.create(box.spec, image=files)
        context = ProvisionContext(sandbox=inside, task_id="t", resumed=True)
        await restarted.provision(context)
        assert restarted.service("mail").memory == {}
        with pytest.raises(EnvironmentError_, match="did not copy service"):
            await world().provision(
                ProvisionContext(sandbox=inside, task_id="t", resumed=True, live_services=carried)
            )
        for each in (parent, child, restarted):
            await each.teardown()
        await provider.aclose()

    asyncio.run(main())


def test_a_line_records_replays_flags_divergence_and_holds_its_budget():
    upstream = Endpoint(url="http://127.0.0.1:1/a")
    models = {"http://127.0.0.1:1/b": lambda request: {"b": request["n"]}}

    async def main() -> None:
        gateway = FakeModelGateway(models)
        line = await gateway.open("r", "n0", upstream=upstream, budget=CallBudget(calls=2))
        assert "r" in line.endpoint.url
        assert "n0" in line.endpoint.url
        assert (await line.call({"n": 1})).response == {"echo": {"n": 1}}
        await line.swap(Endpoint(url="http://127.0.0.1:1/b"))
        assert (await line.call({"n": 2})).response == {"b": 2}
        assert (await line.call({"n": 3})).status == 429
        assert [call.status for call in line.calls()] == [200, 200, 429]
        line.begin()
        assert line.in_flight == 1
        assert await line.quiesce(0.01) is False
        line.end()
        assert await line.quiesce(30) is True
        child = await gateway.open("r", "n1", upstream=upstream, replay=line.calls()[:2])
        replayed = await child.call({"n": 1})
        assert (replayed.replayed, replayed.node, replayed.response) == (
            True,
            "n1",
            {"echo": {"n": 1}},
        )
        strayed = await child.call({"n": 9})
        assert (strayed.diverged, strayed.response) == (True, None)
        await gateway.aclose()
        assert (await child.call({"n": 2})).status == 503
        gateway.faults.fail_on["open"] = SandboxError("down")
        with pytest.raises(SandboxError):
            await gateway.open("r", "n2", upstream=upstream)
        json.dumps([call.model_dump(mode="json") for call in child.calls()])

    asyncio.run(main())
