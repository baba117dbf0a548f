"""The provider against the conformance kit."""

import asyncio

import pytest
from benchflow_sandbox_subprocess import SubprocessProvider
from benchflow_testing import (
    CheckResult,
    SandboxCheck,
    open_sandbox_subject,
    run_check,
    sandbox_checks,
)


async def outcome(check: SandboxCheck) -> CheckResult:
    provider = SubprocessProvider(allow_unisolated=True)
    try:
        async with open_sandbox_subject(provider) as subject:
            return await run_check(check, subject)
    finally:
        await provider.aclose()


@pytest.mark.parametrize("check", sandbox_checks(), ids=str)
def test_the_provider_keeps_the_promise(check: SandboxCheck) -> None:
    result = asyncio.run(outcome(check))
    if result.status == "skipped":
        pytest.skip(result.reason)
    result.raise_if_failed()


def test_without_consent_nothing_is_started() -> None:
    async def main() -> str:
        provider = SubprocessProvider()
        async with open_sandbox_subject(provider) as subject:
            result = await run_check(sandbox_checks()[0], subject)
        return result.reason

    assert "SandboxUnsupportedError" in asyncio.run(main())
