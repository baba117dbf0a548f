"""The conformance kit of a WorkerBackend."""

from collections.abc import Callable, Sequence

from .backend_subject import BackendCheck, BackendSubject
from .check import CheckResult, run_checks
from .checks.backend_checks import BACKEND_CHECKS, RESIZABLE_CHECKS


def backend_checks() -> list[BackendCheck]:
    """Return every check of a `WorkerBackend`; `str(check)` is its name."""
    return list(BACKEND_CHECKS)


def resizable_backend_checks() -> list[BackendCheck]:
    """Return the further checks of a `ResizableBackend`."""
    return list(RESIZABLE_CHECKS)


async def check_backend(
    subject: BackendSubject,
    *,
    is_resizable: bool = False,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks against the backends that `subject` makes, one for each check.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    checks = backend_checks() + (resizable_backend_checks() if is_resizable else [])
    return await run_checks(checks, subject, only=only, on_result=on_result)
