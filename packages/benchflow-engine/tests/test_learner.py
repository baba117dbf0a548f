"""The learner store of a rollout: versions, their digests, and files that nobody trusts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import (
    ExecResult,
    LearnerUse,
    LearnerVersion,
    RolloutRecord,
    SandboxLostError,
    SandboxSpec,
    StoreError,
)
from benchflow_contracts.redaction import redacting
from benchflow_engine.learner import LEARNER_DIR, LearnerDirectory
from benchflow_engine.secret_redactor import SecretRedactor
from benchflow_testing.fakes import FakeSandbox, FakeSandboxProvider

EMPTY = LearnerVersion()


async def sandbox(**changes: Any) -> FakeSandbox:
    return await FakeSandboxProvider().create(SandboxSpec(user="agent", **changes))


def record(rollout: str = "r1", **changes: Any) -> RolloutRecord:
    fields = {"status": "completed", "reward": 0.0, "finished_at": 0, **changes}
    names = {"task_id": "t", "task_digest": "d", "agent": "a", "model": None, "sandbox": "s"}
    return RolloutRecord.model_validate({"rollout_id": rollout, **names, **fields})


def play(
    job: Path,
    files: dict[str, str],
    before: LearnerVersion = EMPTY,
    rollout: str = "r1",
    **changes: Any,
) -> LearnerUse:
    """Run a rollout whose agent writes `files` into its store."""
    (job / rollout).mkdir(exist_ok=True)

    async def run() -> RolloutRecord:
        store = LearnerDirectory(before, job / rollout, max_bytes=1000)
        inside = await sandbox()
        await store.upload(inside)
        for name, text in files.items():
            inside.files.put(f"{LEARNER_DIR}/{name}", text.encode(), user="agent")
        await store.download(inside)
        return await store.finish(record(rollout, **changes))

    use = asyncio.run(run()).learner
    assert use is not None
    return use


def test_each_rollout_begins_with_what_the_one_before_left(tmp_path: Path) -> None:
    first = play(tmp_path, {"notes/a.md": "a"})
    assert first.after is not None
    assert (first.after.generation, first.after.rollout) == (1, "r1")
    second = play(tmp_path, {"b": "b"}, first.after, "r2")
    assert second.before == first.after
    assert second.after is not None
    assert (second.after.generation, second.after.rollout) == (2, "r2")
    assert second.after.digest != first.after.digest
    left = {path.relative_to(tmp_path / "r2/learner") for path in tmp_path.rglob("r2/learner/**/*")}
    assert {path.as_posix() for path in left} == {"notes", "notes/a.md", "b"}


def test_a_store_that_did_not_change_is_not_a_new_version(tmp_path: Path) -> None:
    first = play(tmp_path, {"a": "a"})
    assert first.after is not None
    same = play(tmp_path, {}, first.after, "r2")
    assert (same.before, same.after) == (first.after, None)
    assert not (tmp_path / "r2/learner").exists()
    assert play(tmp_path, {}, rollout="r3").after is None


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "failed", "reward": None},
        {"status": "ungraded", "reward": None},
        {"reward": None, "tampered": 1, "claimed": 1.0},
    ],
)
def test_a_rollout_without_a_score_that_counts_leaves_the_version_before(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert play(tmp_path, {"a": "a"}, **changes) == LearnerUse()
    assert not (tmp_path / "r1/learner").exists()


def test_a_store_over_its_size_is_refused_and_the_agent_keeps_its_score(tmp_path: Path) -> None:
    use = play(tmp_path, {"a": "a" * 1001})
    assert use.after is None
    assert "more than the limit of 1000" in (use.refused or "")


def test_links_are_left_out_and_a_link_in_the_place_of_the_store_is_refused(tmp_path: Path) -> None:
    async def leave(link: str) -> LearnerUse | None:
        store = LearnerDirectory(EMPTY, tmp_path, max_bytes=1000)
        inside = await sandbox()
        await store.upload(inside)
        inside.files.put(f"{LEARNER_DIR}/a", b"a")
        await inside.exec(f"rm -rf {link}; ln -s /etc/passwd {link}", user="root")
        await store.download(inside)
        return (await store.finish(record())).learner

    use = asyncio.run(leave(f"{LEARNER_DIR}/link"))
    assert use is not None
    assert use.after is not None
    assert [path.name for path in (tmp_path / "learner").iterdir()] == ["a"]
    use = asyncio.run(leave(LEARNER_DIR))
    assert use is not None
    assert (use.after, bool(use.refused)) == (None, True)


def test_the_operators_secrets_are_masked(tmp_path: Path) -> None:
    with redacting(SecretRedactor(frozenset({"sk-0123456789"}))):
        use = play(tmp_path, {"a": "key=sk-0123456789\n"})
    assert use.after is not None
    assert (tmp_path / "r1/learner/a").read_text() == "key=[redacted]\n"


@pytest.mark.parametrize("damage", ["changed", "executable", "missing"])
def test_a_damaged_version_is_not_uploaded(tmp_path: Path, damage: str) -> None:
    version = play(tmp_path, {"a": "a"}).after
    file = tmp_path / "r1/learner/a"
    if damage == "changed":
        file.write_text("b")
    elif damage == "executable":
        file.chmod(0o755)
    else:
        file.unlink()
    assert version is not None
    with pytest.raises(StoreError, match="version 1 of the learner store is damaged"):
        play(tmp_path, {}, version, "r2")


def test_a_directory_of_the_image_in_its_place_is_emptied(tmp_path: Path) -> None:
    async def run(code: int) -> bool:
        inside = await sandbox()
        inside.files.put(f"{LEARNER_DIR}/old", b"")
        if code:
            failed = ExecResult(exit_code=code, stdout="", stderr="busy", duration_sec=0)
            inside.on("rm -rf", lambda _: failed)
        await LearnerDirectory(EMPTY, tmp_path, max_bytes=1).upload(inside)
        return inside.files.exists(f"{LEARNER_DIR}/old")

    assert not asyncio.run(run(0))
    with pytest.raises(Exception, match="cannot empty '/learner': busy"):
        asyncio.run(run(1))


def test_a_sandbox_that_was_lost_is_not_the_agents_fault(tmp_path: Path) -> None:
    class Lost(FakeSandbox):
        async def download(self, *args: Any, **options: Any) -> None:
            raise SandboxLostError("gone")

    async def run() -> None:
        inside = await sandbox()
        inside.__class__ = Lost
        await LearnerDirectory(EMPTY, tmp_path, max_bytes=1).download(inside)

    with pytest.raises(SandboxLostError):
        asyncio.run(run())


def test_a_download_that_takes_too_long_is_refused(tmp_path: Path) -> None:
    class Slow(FakeSandbox):
        async def download(self, *args: Any, **options: Any) -> None:
            await asyncio.Event().wait()

    async def run() -> LearnerUse | None:
        inside = await sandbox()
        inside.__class__ = Slow
        store = LearnerDirectory(EMPTY, tmp_path, max_bytes=1, seconds=0.01)
        await store.download(inside)
        return (await store.finish(record())).learner

    use = asyncio.run(run())
    assert use == LearnerUse(refused="the download took longer than 0.01 s")
