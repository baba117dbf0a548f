"""When a box counts as ready."""

import asyncio

import pytest
from benchflow_contracts import Healthcheck, ReadinessError, SandboxError, SandboxSpec
from benchflow_kernel.world import wait_healthy
from benchflow_testing.fakes import FakeSandboxProvider

SOON = {"interval_sec": 0.001, "start_interval_sec": 0.001}
TRY = "echo try >> /tmp/tries; "


def tries(**check) -> tuple[int, str]:
    """Wait for a box whose check counts its tries; return their number and the error."""

    async def main():
        box = await FakeSandboxProvider().create(SandboxSpec())
        error = ""
        try:
            await wait_healthy(box, Healthcheck(**SOON, **check), where="task.toml:steps.0")
        except ReadinessError as raised:
            error = str(raised)
        made = await box.exec("cat /tmp/tries")
        await box.teardown()
        return made.stdout.count("try"), error

    return asyncio.run(main())


def test_the_first_success_is_enough():
    assert tries(command=TRY + "true") == (1, "")


def test_a_box_that_stays_sick_is_given_up_after_its_retries():
    made, error = tries(command=TRY + "echo no db; false", retries=4)
    assert made == 4
    assert error == (
        "task.toml:steps.0: the healthcheck failed 4 times in a row: exit code 1: no db"
    )


def test_failures_of_the_start_period_do_not_count():
    made, error = tries(command=TRY + "false", start_period_sec=0.2, retries=1)
    assert made > 1
    assert "failed 1 times in a row" in error


def test_a_try_that_hangs_is_a_failure():
    made, error = tries(command=TRY + "sleep 60", timeout_sec=0.05, retries=2)
    assert (made, "no result within 0.05 s" in error) == (2, True)


def test_a_box_that_is_gone_is_no_sick_box():
    async def main():
        box = await FakeSandboxProvider().create(SandboxSpec())
        await box.teardown()
        await wait_healthy(box, Healthcheck(command="true"), where="here")

    with pytest.raises(SandboxError):
        asyncio.run(main())
