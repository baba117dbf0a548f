"""One check of the conformance kit, and the runner of a list of them.

The kit raises its own errors instead of using `assert`, so that it still fails
under `python -O`.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, overload

from benchflow_contracts._model import Model
from benchflow_contracts.errors import UsageError

SubjectT = TypeVar("SubjectT")

CheckStatus = Literal["passed", "failed", "skipped"]
DEADLINE_SEC = 60.0
"""The seconds after which a check counts as failed."""


class CheckFailedError(AssertionError):
    """The subject breaks a promise."""


class CheckSkippedError(Exception):
    """The promise cannot be tested here. The message has the missing condition."""


class CheckResult(Model):
    """The outcome of one check."""

    name: str
    status: CheckStatus
    reason: str = ""
    """The reason of a failed or skipped check."""
    duration_sec: float

    def raise_if_failed(self) -> None:
        """Raise `CheckFailedError` if the check failed."""
        if self.status == "failed":
            raise CheckFailedError(f"{self.name}: {self.reason}")


@dataclass(frozen=True, slots=True)
class Check(Generic[SubjectT]):
    """One promise of a Protocol and the code that tests it."""

    name: str
    promise: str
    run: Callable[[SubjectT], Awaitable[None]]
    lacks: Callable[[SubjectT], str | None]
    """Returns the capability that the check needs and the subject does not claim, or `None`."""

    def __str__(self) -> str:
        return self.name


class _Promising(Protocol):
    def __call__(self, run: Callable[[SubjectT], Awaitable[None]]) -> Check[SubjectT]: ...


@overload
def promise() -> _Promising: ...
@overload
def promise(
    lacks: Callable[[SubjectT], str | None],
) -> Callable[[Callable[[SubjectT], Awaitable[None]]], Check[SubjectT]]: ...
def promise(lacks: Callable[[Any], str | None] | None = None) -> Any:
    """Turn an async function into a Check: its name is the name, its docstring the promise."""

    def make(run: Callable[[Any], Awaitable[None]]) -> Check[Any]:
        name = getattr(run, "__name__", "")
        text = inspect.cleandoc(run.__doc__ or "")
        return Check(name, text, run, lacks or _nothing)

    return make


def _nothing(_subject: object) -> str | None:
    return None


def expect(condition: object, message: str) -> None:
    """Fail the running check with `message` unless `condition` is true."""
    if not condition:
        raise CheckFailedError(message)


def expect_equal(actual: object, expected: object, label: str) -> None:
    """Fail the running check unless both are equal; the message shows both."""
    if actual != expected:
        raise CheckFailedError(f"{label} is {_short(actual)}, not {_short(expected)}")


async def expect_error(
    kinds: type[BaseException] | tuple[type[BaseException], ...],
    work: Awaitable[object],
    label: str,
) -> BaseException:
    """Fail the running check unless `work` raises one of `kinds`; return the error."""
    try:
        value = await work
    except kinds as error:
        return error
    names = " or ".join(k.__name__ for k in (kinds if isinstance(kinds, tuple) else (kinds,)))
    raise CheckFailedError(f"{label} gave {_short(value)} instead of raising {names}")


async def run_checks(
    checks: Sequence[Check[SubjectT]],
    subject: SubjectT,
    *,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
    at_once: int = 1,
) -> list[CheckResult]:
    """Run `checks` and return their results in order.

    Up to `at_once` checks run at the same time, and each has `at_once` times as long. The last
    check runs alone. A check that raises an error has failed. The other checks still run.
    Cancellation ends the run.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    unknown = set(only or ()) - {check.name for check in checks}
    if unknown:
        raise UsageError(f"unknown checks: {', '.join(sorted(unknown))}")
    chosen = [check for check in checks if only is None or check.name in only]
    slots = asyncio.Semaphore(at_once)

    async def run(check: Check[SubjectT]) -> CheckResult:
        async with slots:
            result = await run_check(check, subject, DEADLINE_SEC * at_once)
            if on_result is not None:
                on_result(result)
            return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(check)) for check in chosen[:-1]]
    last = [await run(check) for check in chosen[-1:]]
    return [*(task.result() for task in tasks), *last]


async def run_check(
    check: Check[SubjectT], subject: SubjectT, seconds: float | None = None
) -> CheckResult:
    """Run one check, for at most `seconds` (default: `DEADLINE_SEC`), and return its result."""
    started = time.monotonic()
    status, reason = await _outcome(check, subject, seconds or DEADLINE_SEC)
    return CheckResult(
        name=check.name,
        status=status,
        reason=reason,
        duration_sec=time.monotonic() - started,
    )


async def _outcome(
    check: Check[SubjectT], subject: SubjectT, seconds: float
) -> tuple[CheckStatus, str]:
    missing = check.lacks(subject)
    if missing:
        return "skipped", missing
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            await check.run(subject)
    except CheckSkippedError as skipped:
        return "skipped", str(skipped)
    except Exception as error:  # noqa: BLE001 - every error is recorded as a failed check
        if deadline.expired():
            return "failed", f"did not end within {seconds:g} s"
        return "failed", describe(error)
    return "passed", ""


def describe(error: BaseException) -> str:
    """Return an error, or the errors of an exception group, in one line."""
    if isinstance(error, BaseExceptionGroup):
        inner: tuple[BaseException, ...] = error.exceptions  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return "; ".join(describe(each) for each in inner)
    if isinstance(error, CheckFailedError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _short(value: object, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
