"""Artifacts by digest: durable, checked on read, and never behind a link."""

import asyncio
import errno
import os
from hashlib import sha256
from pathlib import Path

import pytest
from benchflow_contracts import StoreError, UsageError
from benchflow_store.database import DiskFullError, LocalEvidenceStore, ObjectEvidenceStore

DATA = b"evidence"
DIGEST = sha256(DATA).hexdigest()


def put(store: LocalEvidenceStore, data: bytes = DATA) -> str:
    return asyncio.run(store.put(data))


def test_what_was_put_is_found_by_its_digest(tmp_path: Path) -> None:
    store = LocalEvidenceStore(tmp_path / "artifacts")
    assert not asyncio.run(store.has(DIGEST))
    assert put(store) == put(store) == DIGEST
    assert asyncio.run(store.get(DIGEST)) == DATA
    assert (tmp_path / "artifacts/sha256" / DIGEST[:2] / DIGEST).read_bytes() == DATA
    assert list(store.digests()) == [(DIGEST, len(DATA))]
    asyncio.run(store.delete(DIGEST))
    asyncio.run(store.delete(DIGEST))
    assert not asyncio.run(store.has(DIGEST))
    with pytest.raises(StoreError, match=DIGEST):
        asyncio.run(store.get(DIGEST))


@pytest.mark.parametrize("is_there", [False, True])
def test_each_directory_is_flushed_to_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    flushed, fsync = set[Path](), os.fsync

    def note(descriptor: int) -> None:
        flushed.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    store = tmp_path / "jobs" / "nightly" / "artifacts"
    folder = store / "sha256" / DIGEST[:2]
    if is_there:  # by a process that has not flushed its last three names
        folder.mkdir(parents=True)
    put(LocalEvidenceStore(store))
    parents = [folder, *folder.parents]
    last = store.parent if is_there else tmp_path
    assert set(parents[: parents.index(last) + 1]) <= flushed


def test_damaged_bytes_are_refused_and_put_repairs_them(tmp_path: Path) -> None:
    store = LocalEvidenceStore(tmp_path)
    put(store)
    (tmp_path / "sha256" / DIGEST[:2] / DIGEST).write_bytes(b"Evidence")
    with pytest.raises(StoreError, match="damaged"):
        asyncio.run(store.get(DIGEST))
    put(store)
    assert asyncio.run(store.get(DIGEST)) == DATA


@pytest.mark.parametrize("kind", ["file", "folder", "pipe"])
def test_a_link_or_a_pipe_is_not_followed(tmp_path: Path, kind: str) -> None:
    outside, store = tmp_path / "outside", LocalEvidenceStore(tmp_path / "store")
    put(LocalEvidenceStore(outside))
    folder = tmp_path / "store/sha256" / DIGEST[:2]
    if kind == "folder":
        folder.parent.mkdir(parents=True)
        folder.symlink_to(outside / "sha256" / DIGEST[:2])
    else:
        folder.mkdir(parents=True)
        if kind == "pipe":
            os.mkfifo(folder / DIGEST)
        else:
            (folder / DIGEST).symlink_to(outside / "sha256" / DIGEST[:2] / DIGEST)
    assert not asyncio.run(store.has(DIGEST))
    with pytest.raises(StoreError):
        asyncio.run(store.get(DIGEST))
    assert list(store.digests()) == ([] if kind == "folder" else [(DIGEST, _size(folder))])


def _size(folder: Path) -> int:
    return (folder / DIGEST).lstat().st_size


@pytest.mark.parametrize("name", ["", "../x", DIGEST.upper(), DIGEST[:-1], f"{DIGEST}\n"])
def test_only_a_digest_is_a_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="not a SHA-256 digest"):
        asyncio.run(LocalEvidenceStore(tmp_path).get(name))


def test_a_full_disk_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    (tmp_path / "sha256" / DIGEST[:2]).mkdir(parents=True)
    with pytest.raises(DiskFullError, match=str(tmp_path)) as found:
        put(LocalEvidenceStore(tmp_path))
    assert found.value.needed_bytes == len(DATA)
    assert list((tmp_path / "sha256" / DIGEST[:2]).iterdir()) == []


def test_a_bucket_stores_artifacts_by_digest(tmp_path: Path) -> None:
    def damage() -> None:
        next(path for path in tmp_path.rglob(DIGEST)).write_bytes(b"Evidence")

    async def run() -> None:
        store = ObjectEvidenceStore(tmp_path.as_uri())
        assert not await store.has(DIGEST)
        assert await store.put(DATA) == await store.put(DATA) == DIGEST
        assert await store.has(DIGEST)
        assert await store.get(DIGEST) == DATA
        damage()
        with pytest.raises(StoreError, match="damaged"):
            await store.get(DIGEST)
        await store.delete(DIGEST)
        await store.delete(DIGEST)
        with pytest.raises(StoreError, match=DIGEST):
            await store.get(DIGEST)
        with pytest.raises(StoreError, match="not a SHA-256 digest"):
            await store.get("../x")

    asyncio.run(run())


def test_a_url_that_names_no_service_is_refused() -> None:
    with pytest.raises(UsageError, match="nowhere://x"):
        ObjectEvidenceStore("nowhere://x")
