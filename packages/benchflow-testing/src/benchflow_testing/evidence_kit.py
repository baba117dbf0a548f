"""The conformance kit of an EvidenceStore."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from benchflow_contracts.errors import StoreError
from benchflow_contracts.job import EvidenceStore

from .check import Check, CheckResult, expect, expect_equal, expect_error, promise, run_checks

_NOT_DIGESTS = ("", "../x", "A" * 64, "a" * 63, f"{'a' * 64}\n", "a" * 65, "/etc/passwd")


@dataclass(frozen=True, slots=True)
class EvidenceSubject:
    """A store of artifacts under test."""

    store: EvidenceStore
    damage: Callable[[str, bytes], None] | None = None
    """Replaces the bytes of a digest in the store, behind its back."""


EvidenceCheck = Check[EvidenceSubject]


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def _lacks_damage(subject: EvidenceSubject) -> str | None:
    return None if subject.damage else "no `damage` was given"


@promise()
async def bytes_are_found_by_their_digest(subject: EvidenceSubject) -> None:
    """`put` returns the SHA-256 in hex; `get` returns the same bytes, whatever they are."""
    for data in (b"", b"text", bytes(range(256)) * 8192):
        expect(not await subject.store.has(_digest(data)), "a store has bytes before `put`")
        expect_equal(await subject.store.put(data), _digest(data), "the digest")
        expect(await subject.store.has(_digest(data)), "the store does not have what was put")
        expect(await subject.store.get(_digest(data)) == data, "`get` returns other bytes")


@promise()
async def put_is_repeatable(subject: EvidenceSubject) -> None:
    """The same bytes can be stored again, also by several callers at once."""
    data = b"stored again"
    async with asyncio.TaskGroup() as group:
        storing = [group.create_task(subject.store.put(data)) for _ in range(8)]
    expect_equal({task.result() for task in storing}, {_digest(data)}, "the digests")
    expect(await subject.store.get(_digest(data)) == data, "`get` returns other bytes")


@promise()
async def missing_bytes_are_an_error(subject: EvidenceSubject) -> None:
    """`get` raises StoreError and names the digest; `has` returns false."""
    digest = _digest(b"never stored")
    error = await expect_error(StoreError, subject.store.get(digest), "a missing artifact")
    expect(digest in str(error), f"the error does not name the digest: {error}")
    expect(not await subject.store.has(digest), "the store has bytes that were never stored")


@promise()
async def only_a_digest_is_a_name(subject: EvidenceSubject) -> None:
    """Paths, capital letters and other lengths are refused with StoreError."""
    for name in _NOT_DIGESTS:
        for use in (subject.store.get, subject.store.delete):
            await expect_error(StoreError, use(name), f"the name {name!r}")


@promise()
async def deleted_bytes_are_gone(subject: EvidenceSubject) -> None:
    """`delete` is repeatable, leaves other bytes, and the same bytes can be stored again."""
    first, second = [await subject.store.put(data) for data in (b"first", b"second")]
    await subject.store.delete(first)
    await subject.store.delete(first)
    expect(not await subject.store.has(first), "the store has bytes that were deleted")
    expect(await subject.store.get(second) == b"second", "`delete` changed other bytes")
    await subject.store.put(b"first")
    expect(await subject.store.get(first) == b"first", "deleted bytes cannot be stored again")


@promise(_lacks_damage)
async def damaged_bytes_are_not_returned(subject: EvidenceSubject) -> None:
    """`get` raises StoreError if the bytes have another digest."""
    assert subject.damage is not None
    digest = await subject.store.put(b"evidence")
    subject.damage(digest, b"Evidence")
    await expect_error(StoreError, subject.store.get(digest), "a damaged artifact")


_CHECKS: tuple[EvidenceCheck, ...] = (
    bytes_are_found_by_their_digest,
    put_is_repeatable,
    missing_bytes_are_an_error,
    only_a_digest_is_a_name,
    deleted_bytes_are_gone,
    damaged_bytes_are_not_returned,
)


def evidence_checks() -> list[EvidenceCheck]:
    """Return every check; `str(check)` is its name."""
    return list(_CHECKS)


async def check_evidence_store(
    subject: EvidenceSubject,
    *,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks against `subject.store`, which is empty at first.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    return await run_checks(_CHECKS, subject, only=only, on_result=on_result)
