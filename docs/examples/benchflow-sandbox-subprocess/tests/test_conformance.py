"""The provider against the conformance kit."""

import asyncio

import pytest
from benchflow_contracts import SandboxSpec, SandboxUnsupportedError
from benchflow_sandbox_subprocess import SubprocessProvider
from benchflow_testing.pytest_suite import SandboxSuite


class TestSubprocess(SandboxSuite):
    def provider(self) -> SubprocessProvider:
        return SubprocessProvider(allow_unisolated=True)


def test_without_consent_nothing_is_started() -> None:
    with pytest.raises(SandboxUnsupportedError, match="does not isolate"):
        asyncio.run(SubprocessProvider().create(SandboxSpec()))
