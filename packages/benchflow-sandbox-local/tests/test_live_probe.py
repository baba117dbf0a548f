import asyncio
import json
from pathlib import Path

import pytest
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxImage, SandboxSpec
from benchflow_sandbox_local.in_sandbox import fork_probe_program
from benchflow_sandbox_local.live.fork_probe import LostInForkError, probe_live
from benchflow_sandbox_local.live.probe_cache import ProbeCache, ProbeResult

SPEC = SandboxSpec()


class ScriptedToy:
    """A process that answers as the toy would, after `tampering` with its memory."""

    def __init__(self, state, tampering):
        self.id, self.state, self.tampering = "toy", state, tampering
        self.stdin = self.stdout = self.stderr = self
        self.said = [b'{"ready": true}\n']

    async def write(self, data):
        note = data.decode().strip()
        if note.startswith(fork_probe_program.MANY):
            self.said.append(b'{"created": true}\n')
            return
        self.state["notes"].append(note)
        self.state["files"].append(note)
        answer = {"lost": {}, "failed": {}, **self.state, "files": sorted(self.state["files"])}
        self.said.append(json.dumps(self.tampering(note, answer)).encode() + b"\n")

    async def read(self, max_bytes=65536):
        return self.said.pop(0) if self.said else b""


class ScriptedSandbox:
    def __init__(self, maker, state):
        self.maker, self.state = maker, state

    async def spawn(self, command):
        return self.maker.toy(self.state, self.maker.tampering)

    async def snapshot(self, level):
        assert level == "live"
        ref = str(len(self.maker.images))
        self.maker.images[ref] = json.dumps(self.state)
        return SandboxImage(
            provider="x", level="live", consistency="instant", ref=ref, digest="", bytes=0
        )

    async def attach(self, process_id):
        forked = ScriptedToy(self.state, self.maker.tampering)
        forked.said.clear()
        return forked

    async def teardown(self):
        self.maker.alive -= 1


class ScriptedMaker:
    """Forks by copying; what it loses is up to `tampering`."""

    toy = ScriptedToy

    def __init__(self, tampering=lambda note, answer: answer):
        self.tampering, self.images, self.alive, self.made = tampering, {}, 0, 0

    async def create(self, spec, image, labels):
        self.alive += 1
        self.made += 1
        state = {"notes": [], "files": []} if image is None else json.loads(self.images[image.ref])
        return ScriptedSandbox(self, state)

    async def discard(self, image):
        del self.images[image.ref]


def probe(maker):
    try:
        asyncio.run(probe_live(maker, SPEC))
    finally:
        assert (maker.alive, maker.images) == (0, {})


def test_the_probe_forks_twice_deep_and_leaves_nothing():
    maker = ScriptedMaker()
    probe(maker)
    assert maker.made == 5


@pytest.mark.parametrize("where", ["parent", "first", "second", "deeper", "again"])
def test_what_is_lost_anywhere_is_found(where):
    def lose(note, answer):
        return answer | {"lost": {"sqlite": "admitted"}} if note == where else answer

    with pytest.raises(LostInForkError, match=r"sqlite \(admitted\)"):
        probe(ScriptedMaker(lose))


@pytest.mark.parametrize("what", ["notes", "files"])
def test_what_crosses_over_from_a_sibling_is_found(what):
    def leak(note, answer):
        return answer | {what: ["first", *answer[what]]} if note == "second" else answer

    with pytest.raises(LostInForkError, match="in a second child"):
        probe(ScriptedMaker(leak))


def test_a_toy_that_dies_is_no_finding():
    class Dead(ScriptedToy):
        async def read(self, max_bytes=65536):
            return b""

    maker = ScriptedMaker()
    maker.toy = Dead
    with pytest.raises(SandboxError, match="program ended") as caught:
        probe(maker)
    assert not isinstance(caught.value, LostInForkError)


def test_the_toy_loses_nothing_in_a_box_without_a_fork(with_box):
    source = Path(fork_probe_program.__file__).read_text()

    async def test(sandbox):
        process = await sandbox.spawn(["python3", "-I", "-c", source, "toy", "0"])
        said = b""
        for note in (b"", b"one\n", b"two\n"):
            await process.stdin.write(note)
            while not said.endswith(b"\n"):
                data = await process.stdout.read()
                assert data, await process.stderr.read()
                said += data
            told, said = json.loads(said), b""
        await process.aclose()
        return told

    told = with_box(test)
    nothing = {"lost": {}, "failed": {}}
    assert told == {**nothing, "notes": ["one", "two"], "files": ["one", "two"]}


def test_what_could_not_be_found_out_is_no_finding():
    def fail(note, answer):
        return answer | {"failed": {"connection": "timed out"}}

    with pytest.raises(SandboxError, match="timed out") as caught:
        probe(ScriptedMaker(fail))
    assert not isinstance(caught.value, LostInForkError)


def test_the_toy_tells_what_is_lost_from_what_failed():
    def late():
        raise TimeoutError("timed out")

    checks = {
        "good": lambda: None,
        "bad": lambda: fork_probe_program.expect(1, 2, "a number"),
        "late": late,
    }
    assert fork_probe_program.run_checks(checks) == {
        "lost": {"bad": "a number: 1 instead of 2"},
        "failed": {"late": "timed out"},
    }


def test_a_verdict_is_remembered_for_one_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ProbeCache("criu 4.2").get() is None
    ProbeCache("criu 4.2").put(ProbeResult(lost="sqlite"))
    assert ProbeCache("criu 4.2").get() == ProbeResult(lost="sqlite")
    assert ProbeCache("criu 4.3").get() is None
    (torn,) = (tmp_path / "benchflow" / "live-probe").iterdir()
    torn.write_text('{"lost": "sq')
    assert ProbeCache("criu 4.2").get() is None


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    ProbeCache("criu", tmp_path / "file" / "below").put(ProbeResult())
    assert ProbeCache("criu", tmp_path / "file" / "below").get() is None
