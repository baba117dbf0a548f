"""The conformance kit of a SandboxProvider."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchflow_contracts.sandbox import SandboxProvider, SandboxSpec

from .check import CheckResult, run_checks
from .checks.life_checks import LIFE_CHECKS
from .sandbox_report import ABILITIES, SandboxReport
from .sandbox_subject import SandboxCheck, SandboxSubject


def sandbox_checks() -> list[SandboxCheck]:
    """Return every check; `str(check)` is its name. The last one closes the provider."""
    closing = LIFE_CHECKS[-1]
    checks = [check for group in ABILITIES.values() for check in group if check is not closing]
    return [*checks, closing]


async def check_sandbox(
    provider: SandboxProvider,
    *,
    spec: SandboxSpec | None = None,
    base: str | None = None,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
    at_once: int = 1,
) -> SandboxReport:
    """Run the checks against `provider`. Return their results and the provider's abilities.

    A check is skipped only if `capabilities()` denies the ability, or if the sandbox lacks a
    program that the check needs. A check that raises or does not end within a minute has failed.
    Sandboxes are created from `spec`. `base` is an image with a shell and python3, for the checks
    of recipes and services; without it these checks are skipped, and the result says so. The last
    check closes `provider`, unless `only` leaves that check out. Up to `at_once` checks run at
    the same time, each in its own sandboxes; the last check runs alone.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    async with open_sandbox_subject(provider, spec=spec, base=base) as subject:
        results = await run_checks(
            sandbox_checks(), subject, only=only, on_result=on_result, at_once=at_once
        )
    return SandboxReport(provider.name, results, subject.capabilities.notes)


@asynccontextmanager
async def open_sandbox_subject(
    provider: SandboxProvider, *, spec: SandboxSpec | None = None, base: str | None = None
) -> AsyncGenerator[SandboxSubject, None]:
    """Return the subject of the checks, for a caller that runs the checks one by one."""
    capabilities = await provider.capabilities()
    known = capabilities.network_modes
    # Test a provider without the network `none` in another network.
    network = "none" if "none" in known or not known else min(known)
    wanted = spec or SandboxSpec(network=network)
    with TemporaryDirectory(prefix="benchflow-kit-") as scratch:
        yield SandboxSubject(provider, capabilities, wanted, Path(scratch), base)
