"""The checks of a sandbox provider as pytest tests, with a list of its abilities at the end."""

import asyncio
from collections.abc import Mapping

import pytest
from benchflow_contracts.sandbox import SandboxProvider, SandboxSpec

from .check import CheckResult, run_check
from .sandbox_kit import open_sandbox_subject, sandbox_checks
from .sandbox_report import SandboxReport
from .sandbox_subject import SandboxCheck


class SandboxSuite:
    """Subclass this as `TestX` and define `provider`. Each check is a test with a new provider."""

    spec: SandboxSpec | None = None
    base: str | None = None
    """See `check_sandbox`."""

    def provider(self) -> SandboxProvider:
        """Return a new provider."""
        raise NotImplementedError("define `provider`")

    @pytest.mark.parametrize("check", sandbox_checks(), ids=str)
    def test_check(self, check: SandboxCheck, request: pytest.FixtureRequest) -> None:
        """Run one check."""
        result = asyncio.run(self._outcome(check, _summary(request.config)))
        if result.status == "skipped":
            pytest.skip(result.reason)
        result.raise_if_failed()

    async def _outcome(self, check: SandboxCheck, summary: "_Summary") -> CheckResult:
        provider = self.provider()
        try:
            async with open_sandbox_subject(provider, spec=self.spec, base=self.base) as subject:
                result = await run_check(check, subject)
                summary.add(provider.name, result, subject.capabilities.notes)
                return result
        finally:
            await provider.aclose()


class _Summary:
    """Collects results during a session, and prints a report of each provider at its end."""

    def __init__(self) -> None:
        self._results: dict[str, dict[str, CheckResult]] = {}
        self._notes: dict[str, dict[str, str]] = {}

    def add(self, provider: str, result: CheckResult, notes: Mapping[str, str]) -> None:
        # A check that runs again replaces its first result.
        self._results.setdefault(provider, {})[result.name] = result
        self._notes[provider] = dict(notes)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for provider, results in self._results.items():
            report = SandboxReport(provider, results.values(), self._notes[provider])
            terminalreporter.section(f"abilities of {provider}")
            terminalreporter.write_line(str(report))


_SUMMARY = "benchflow-sandbox-abilities"


def _summary(config: pytest.Config) -> _Summary:
    plugins = config.pluginmanager
    found = plugins.get_plugin(_SUMMARY)
    if not isinstance(found, _Summary):
        found = _Summary()
        plugins.register(found, _SUMMARY)
    return found
