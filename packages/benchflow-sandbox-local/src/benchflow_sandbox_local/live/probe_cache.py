"""The cache of probe results.

A result is valid for one kernel, one engine and one version of this code. When one of them changes,
the probe runs again. The cache does not store a failure that a retry could avoid.
"""

import hashlib
import json
import os
import platform
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from benchflow_contracts import Model
from benchflow_sandbox_native import identity_library, init_path, pager_path

from .fork_probe import LostInForkError


class ProbeResult(Model):
    """The result of a probe: `lost` is empty when live forks are safe here."""

    lost: str = ""


class ProbeCache:
    """The stored results of this user, one file each."""

    def __init__(self, engine: str, directory: Path | None = None) -> None:
        self._path = (directory or _cache()) / f"{_key(engine)}.json"

    def get(self) -> ProbeResult | None:
        """Return the stored result, if there is one."""
        with suppress(OSError, ValueError):
            return ProbeResult.model_validate_json(self._path.read_bytes())
        return None

    def put(self, result: ProbeResult) -> None:
        """Store a result; do nothing where the cache is not writable."""
        fresh = self._path.with_suffix(f".{secrets.token_hex(4)}")
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh.write_text(result.model_dump_json(), encoding="utf-8")
            fresh.replace(self._path)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache") / "benchflow" / "live-probe"


def _key(engine: str) -> str:
    """Return a key of everything that the result depends on. `engine` includes its version."""
    kernel = platform.uname()
    facts = [kernel.release, kernel.version, kernel.machine, engine, str(os.geteuid())]
    digest = hashlib.sha256(json.dumps(facts).encode())
    sources = sorted(Path(__file__).parent.parent.rglob("*.py"))
    for path in (*sources, init_path(), identity_library(), pager_path()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


async def cached_probe(engine: str, probe: Callable[[], Awaitable[None]]) -> str:
    """Return the losses of a fork on this machine, from the cache or from a new probe."""
    cache = ProbeCache(engine)
    result = cache.get()
    if result is None:
        try:
            await probe()
        except LostInForkError as error:
            result = ProbeResult(lost=str(error))
        else:
            result = ProbeResult()
        cache.put(result)
    return result.lost
