"""An evidence store in memory."""

import re
from collections.abc import Mapping
from hashlib import sha256

from benchflow_contracts.errors import StoreError

from .faults import FakeFaults, Fault


class FakeEvidenceStore:
    """Stores artifacts in `artifacts`, where a test may damage them.

    Faults are keyed by `put`, `get`, `has` and `delete`.
    """

    def __init__(
        self,
        *,
        fail_on: Mapping[str, Fault] | None = None,
        hang_on: set[str] | None = None,
    ) -> None:
        self.faults = FakeFaults.of(fail_on, hang_on)
        self.artifacts: dict[str, bytes] = {}

    async def put(self, data: bytes) -> str:
        """Store the bytes and return their digest."""
        await self.faults.raise_or_hang("put")
        digest = sha256(data).hexdigest()
        self.artifacts[digest] = data
        return digest

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest."""
        await self.faults.raise_or_hang("get")
        data = self.artifacts.get(_checked(digest))
        if data is None:
            raise StoreError(f"there is not an artifact {digest}")
        if sha256(data).hexdigest() != digest:
            raise StoreError(f"artifact {digest} is damaged")
        return data

    async def has(self, digest: str) -> bool:
        """Return whether the bytes are there."""
        await self.faults.raise_or_hang("has")
        return _checked(digest) in self.artifacts

    async def delete(self, digest: str) -> None:
        """Delete the bytes."""
        await self.faults.raise_or_hang("delete")
        self.artifacts.pop(_checked(digest), None)


def _checked(digest: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise StoreError(f"not a SHA-256 digest: {digest!r}")
    return digest
