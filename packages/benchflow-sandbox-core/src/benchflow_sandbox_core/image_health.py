"""The HEALTHCHECK of an image. It reports when the entrypoint is ready."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from benchflow_contracts.errors import SandboxError, SandboxTimeoutError
from benchflow_contracts.sandbox import ExecResult

_NANO = 1_000_000_000
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)")
_MAX_PAUSE_SEC = 0.5
"""Seconds between two attempts, at most; an image may state a shorter interval."""
_SHOWN = 400

Run = Callable[[Sequence[str], float], Awaitable[ExecResult]]
"""Runs a command inside, with a timeout in seconds."""


@dataclass(frozen=True, slots=True)
class ImageHealth:
    """When an engine considers a container healthy. Times are in seconds."""

    test: tuple[str, ...]
    """An argument vector."""
    interval: float = 30.0
    timeout: float = 30.0
    start_period: float = 0.0
    retries: int = 3

    @classmethod
    def of(cls, value: object) -> Self | None:
        """Read `Healthcheck` of an image's `config`; `None` if there is no check.

        Source: the Docker image specification 1.2, `Healthcheck`.
        """
        if not isinstance(value, Mapping):
            return None
        fields = cast("Mapping[str, Any]", value)
        words = cast("list[object]", fields.get("Test") or [])
        kind, *test = map(str, words) if words else ("NONE",)
        if kind not in {"CMD", "CMD-SHELL"} or not test:
            return None

        def seconds(key: str, default: float) -> float:
            nanoseconds = fields.get(key)
            if isinstance(nanoseconds, int) and nanoseconds > 0:
                return nanoseconds / _NANO
            return default

        retries = fields.get("Retries")
        return cls(
            test=("/bin/sh", "-c", test[0]) if kind == "CMD-SHELL" else tuple(test),
            interval=seconds("Interval", 30.0),
            timeout=seconds("Timeout", 30.0),
            start_period=seconds("StartPeriod", 0.0),
            retries=retries if isinstance(retries, int) and retries > 0 else 3,
        )

    @classmethod
    def instruction(cls, flags: Sequence[tuple[str, str]], text: str) -> Self | None:
        """Read a HEALTHCHECK of a Dockerfile; `None` for `NONE`.

        Raises:
            ValueError: A flag or the form of the command is unknown.
        """
        kind, _, command = text.strip().partition(" ")
        if kind.upper() == "NONE":
            return None
        if kind.upper() != "CMD" or not command.strip():
            raise ValueError(f"HEALTHCHECK {text!r} is neither CMD nor NONE")
        names = {"interval": "Interval", "timeout": "Timeout", "start-period": "StartPeriod"}
        fields: dict[str, object] = {"Test": _test(command.strip())}
        for name, value in flags:
            if name in names:
                fields[names[name]] = int(_duration(value) * _NANO)
            elif name == "retries":
                fields["Retries"] = int(value)
            elif name != "start-interval":
                raise ValueError(f"HEALTHCHECK does not have a flag --{name}")
        return cls.of(fields)

    def encode(self) -> dict[str, Any]:
        """Return the fields in the form that `of` reads."""
        return {
            "Test": ["CMD", *self.test],
            "Interval": int(self.interval * _NANO),
            "Timeout": int(self.timeout * _NANO),
            "StartPeriod": int(self.start_period * _NANO),
            "Retries": self.retries,
        }

    async def wait(self, run: Run) -> None:
        """Repeat the test until it succeeds, as long as an engine would report `starting`.

        The test may run more often than the image states. Only the time limits it.

        Raises:
            SandboxError: The test never succeeded. The message has the last output.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.start_period + self.retries * self.interval + self.timeout
        while True:
            failure = await self._failure(run)
            if failure is None:
                return
            if clock() > deadline:
                test = " ".join(self.test)[:200]
                raise SandboxError(
                    f"the image's HEALTHCHECK {test!r} never succeeded: {failure}",
                    hint="run its command in the sandbox, after the entrypoint",
                    caused_by="inside",
                )
            await asyncio.sleep(min(self.interval, _MAX_PAUSE_SEC))

    async def _failure(self, run: Run) -> str | None:
        try:
            result = await run(self.test, self.timeout)
        except SandboxTimeoutError:
            return f"no result within {self.timeout:g} s"
        if result.ok:
            return None
        output = (result.stderr or result.stdout).strip()[-_SHOWN:]
        return f"exit code {result.exit_code}: {output}"


def _test(command: str) -> list[str]:
    try:
        words: object = json.loads(command)
    except ValueError:
        return ["CMD-SHELL", command]
    if isinstance(words, list):
        return ["CMD", *map(str, cast("list[object]", words))]
    return ["CMD-SHELL", command]


def _duration(text: str) -> float:
    parts = _PART.findall(text)
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 1m30s")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
