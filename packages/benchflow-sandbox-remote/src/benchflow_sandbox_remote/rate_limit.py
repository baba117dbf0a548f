"""The rate of calls to one account, shared by all processes of a user on this machine."""

import asyncio
import email.utils
import fcntl
import hashlib
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchflow_contracts.errors import CapacityError
from benchflow_sandbox_core.paths import state_directory

from .terms import Rate

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MAX_PAUSE = 900.0
"""Seconds of a `Retry-After` that are obeyed. A wrong clock of the cloud must not stop a job."""
_MAX_BYTES = 4096


def account_file(cloud: str, account: str) -> Path:
    """Return the file with the state of an account. Its name does not reveal `account`, a key."""
    digest = hashlib.sha256(f"benchflow account\0{cloud}\0{account}".encode()).hexdigest()
    return state_directory() / "accounts" / f"{digest[:32]}.json"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds until the next try by the headers of an answer, or `None`.

    `Retry-After` and its variants for one limit, such as `Retry-After-Sandbox-Create`, count; the
    longest one wins. A date is compared with the `Date` of the same answer, so the clocks of this
    machine and of the cloud may differ.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    names = [name for name in lower if name == "retry-after" or name.startswith("retry-after-")]
    seconds = [_seconds(lower[name].strip(), lower.get("date")) for name in names]
    known = [each for each in seconds if each is not None]
    return min(max(known), _MAX_PAUSE) if known else None


def _seconds(value: str, answered_at: str | None) -> float | None:
    if value.isascii() and value.isdigit():
        return float(value[:6])
    until, since = _date(value), _date(answered_at or "")
    if until is None:
        return None
    return max(0.0, until - (time.time() if since is None else since))


def _date(value: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(value).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


@dataclass(slots=True)
class _State:
    boot: str
    full_at: float = 0.0
    """The time at which the bucket is full again."""
    paused_until: float = 0.0


class RateLimiter:
    """A token bucket in a file. Each permit is given to one process, in the order of the calls.

    A permit of a call that was cancelled is lost. The file survives no reboot, because its times
    are those of this machine's monotonic clock.
    """

    def __init__(
        self,
        path: Path,
        rate: Rate | None,
        *,
        max_wait: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._path = path
        self._rate = rate
        self._max_wait = max_wait
        self._clock, self._sleep = clock, sleep

    async def acquire(self) -> None:
        """Wait for a permit.

        Raises:
            CapacityError: The wait would be longer than `max_wait` seconds. No permit was taken.
            OSError: The file cannot be used.
        """
        while True:
            start = await asyncio.to_thread(self.reserve)
            if (wait := start - self._clock()) > 0:
                await self._sleep(wait)
            if await asyncio.to_thread(self._paused_until) <= self._clock():
                return

    def reserve(self) -> float:
        """Take the next permit; return the time of the clock from which it is valid.

        Raises:
            CapacityError: See `acquire`.
            OSError: See `acquire`.
        """
        with self._locked() as state:
            now = self._clock()
            start = max(now, state.paused_until)
            rate = self._rate
            if rate is not None:
                start = max(start, state.full_at - (rate.burst - 1) / rate.per_second)
            if start - now > self._max_wait:
                raise CapacityError(
                    f"the next call to the account is allowed in {start - now:.0f} s",
                    retry_after=start - now - self._max_wait,
                )
            if rate is not None:
                state.full_at = max(state.full_at, start) + 1 / rate.per_second
            return start

    def pause(self, seconds: float) -> None:
        """Give no permit for `seconds`, and no burst after them: the cloud asked for it."""
        # Other machines with this account do not come back at the same moment.
        pause = min(seconds, _MAX_PAUSE) * random.uniform(1, 1.1)  # noqa: S311
        with self._locked() as state:
            state.paused_until = max(state.paused_until, self._clock() + pause)
            if self._rate is not None:
                empty = state.paused_until + (self._rate.burst - 1) / self._rate.per_second
                state.full_at = max(state.full_at, empty)

    def _paused_until(self) -> float:
        with self._locked() as state:
            return state.paused_until

    @contextmanager
    def _locked(self) -> Generator[_State]:
        """Yield the state under the lock of the file, and write what the block changed."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            before = os.pread(file, _MAX_BYTES, 0)
            state = _read(before)
            yield state
            after = json.dumps(asdict(state)).encode()
            if after != before:
                # Blanks instead of a shorter file: a reader never sees an empty one after a crash.
                os.pwrite(file, after.ljust(len(before)), 0)
        finally:
            os.close(file)


def _read(text: bytes) -> _State:
    """Return the state; a new one after a reboot, and for a file that is not ours."""
    boot = _boot_id()
    try:
        found = _State(**json.loads(text))
        if found.boot == boot:
            return _State(boot, float(found.full_at), float(found.paused_until))
    except (TypeError, ValueError):
        pass
    return _State(boot)


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
