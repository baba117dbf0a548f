"""The HEALTHCHECK of an image: how it is read, and how long it is tried."""

import asyncio

import pytest
from benchflow_contracts.errors import SandboxError, SandboxTimeoutError
from benchflow_contracts.sandbox import ExecResult
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.image_health import ImageHealth


def test_the_engines_form_is_read_with_its_defaults():
    assert ImageHealth.of({"Test": ["CMD-SHELL", "curl -f x || exit 1"]}) == ImageHealth(
        test=("/bin/sh", "-c", "curl -f x || exit 1"),
        interval=30.0,
        timeout=30.0,
        start_period=0.0,
        retries=3,
    )


@pytest.mark.parametrize("found", [None, {}, {"Test": []}, {"Test": ["NONE"]}, {"Test": None}])
def test_an_image_may_check_nothing(found):
    assert ImageHealth.of(found) is None


def test_an_instruction_of_a_dockerfile_is_read_as_the_engine_writes_it():
    flags = (("interval", "1m0.5s"), ("timeout", "250ms"), ("start-period", "2h"), ("retries", "7"))
    health = ImageHealth.instruction(flags, 'CMD ["test", "-e", "/ready"]')
    assert health == ImageHealth(("test", "-e", "/ready"), 60.5, 0.25, 7200.0, 7)
    assert ImageConfig.of(ImageConfig(health=health).encode()).health == health
    shell = ImageHealth.instruction((), "cmd  test -e /ready")
    assert shell is not None
    assert shell.test == ("/bin/sh", "-c", "test -e /ready")
    assert ImageHealth.instruction((), "NONE") is None


@pytest.mark.parametrize(
    ("flags", "text", "why"),
    [
        ((("interval", "soon"),), "CMD true", "'soon' is not a duration"),
        ((("color", "red"),), "CMD true", "not have a flag --color"),
        ((), "true", "neither CMD nor NONE"),
        ((), "CMD", "neither CMD nor NONE"),
    ],
)
def test_an_instruction_that_makes_no_sense_is_refused(flags, text, why):
    with pytest.raises(ValueError, match=why):
        ImageHealth.instruction(flags, text)


def outcomes(*codes):
    """Return how to run the check: it ends with each code in turn; `None` takes too long."""
    left = list(codes)

    async def run(test, timeout):
        code = left.pop(0) if len(left) > 1 else left[0]
        if code is None:
            raise SandboxTimeoutError(f"{test} took over {timeout} s")
        return ExecResult(exit_code=code, stdout="", stderr="not yet\n", duration_sec=0)

    return run, left


def test_it_is_tried_until_it_succeeds():
    run, left = outcomes(1, None, 1, 0)
    asyncio.run(ImageHealth(("true",), interval=0.001, retries=10**6).wait(run))
    assert left == [0]


def test_one_that_never_succeeds_is_an_error_with_its_last_words():
    run, _ = outcomes(3)
    health = ImageHealth(("check", "it"), interval=0.001, timeout=0.001, retries=3)
    with pytest.raises(SandboxError, match="'check it' never succeeded: exit code 3: not yet"):
        asyncio.run(health.wait(run))
