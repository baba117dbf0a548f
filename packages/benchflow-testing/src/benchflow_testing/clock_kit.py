"""The conformance kit of a Clock."""

import asyncio
from collections.abc import Callable, Sequence

from benchflow_contracts.job import Clock

from .check import Check, CheckResult, expect, expect_equal, promise, run_checks

ClockCheck = Check[Clock]


@promise()
async def monotonic_time_does_not_go_back(clock: Clock) -> None:
    """Each reading is at least the one before."""
    times = [clock.monotonic() for _ in range(1000)]
    expect_equal(times, sorted(times), "the readings")


@promise()
async def sleep_lasts_as_long_as_it_says(clock: Clock) -> None:
    """At least the seconds pass on the monotonic clock."""
    started = clock.monotonic()
    await clock.sleep(0.05)
    # The sleep of an event loop ends up to one tick of its own clock early.
    expect(clock.monotonic() - started >= 0.04, "`sleep` returned early")


@promise()
async def a_sleep_that_is_over_returns(clock: Clock) -> None:
    """Zero and negative seconds are not errors."""
    for seconds in (0.0, -1.0):
        await clock.sleep(seconds)


@promise()
async def sleepers_wake_in_the_order_of_their_times(clock: Clock) -> None:
    """The shorter of two sleeps ends first."""
    woken: list[str] = []

    async def sleep(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    # Not close together: a busy machine wakes both in one turn of the loop, then by their times.
    async with asyncio.TaskGroup() as group:
        group.create_task(sleep("long", 0.2))
        group.create_task(sleep("short", 0.05))
    expect_equal(woken, ["short", "long"], "the order")


@promise()
async def a_sleep_can_be_cancelled(clock: Clock) -> None:
    """The cancellation is raised again, and other sleepers continue."""
    async with asyncio.TaskGroup() as group:
        endless = group.create_task(clock.sleep(1e6))
        await clock.sleep(0)
        endless.cancel()
    expect(endless.cancelled(), "a cancelled sleep returned")
    await clock.sleep(0.01)


@promise()
async def the_wall_clock_counts_seconds(clock: Clock) -> None:
    """`time` and `monotonic` are finite numbers in seconds."""
    expect(0 <= clock.time() < 1e11, f"`time` returned {clock.time()}")
    expect(abs(clock.monotonic()) < 1e11, f"`monotonic` returned {clock.monotonic()}")


_CHECKS: tuple[ClockCheck, ...] = (
    monotonic_time_does_not_go_back,
    sleep_lasts_as_long_as_it_says,
    a_sleep_that_is_over_returns,
    sleepers_wake_in_the_order_of_their_times,
    a_sleep_can_be_cancelled,
    the_wall_clock_counts_seconds,
)


def clock_checks() -> list[ClockCheck]:
    """Return every check; `str(check)` is its name."""
    return list(_CHECKS)


async def check_clock(
    clock: Clock,
    *,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks against `clock`. The time of a virtual clock has to pass meanwhile.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    return await run_checks(_CHECKS, clock, only=only, on_result=on_result)
