"""The conformance kit of an Agent and its Session."""

from collections.abc import Callable, Sequence

from .agent_subject import AgentCheck, AgentSubject
from .check import CheckResult, run_checks
from .checks.agent_checks import AGENT_CHECKS
from .checks.host_agent_checks import HOST_AGENT_CHECKS
from .checks.session_state_checks import CAPTURE_CHECKS


def agent_checks() -> list[AgentCheck]:
    """Return every check; `str(check)` is its name."""
    return [*AGENT_CHECKS, *HOST_AGENT_CHECKS, *CAPTURE_CHECKS]


async def check_agent(
    subject: AgentSubject,
    *,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks against `subject.agent` in sandboxes of `subject.provider`.

    Checks whose prompt is missing are skipped. Checks of a live fork are skipped unless the
    agent's `proven` and the provider claim live forks. Checks of an agent that acts on the host
    need `subject.task`. The provider stays open.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    return await run_checks(agent_checks(), subject, only=only, on_result=on_result)
