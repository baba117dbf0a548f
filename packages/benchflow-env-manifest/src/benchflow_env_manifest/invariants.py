"""Check conditions that are true in every state of the world."""

from collections.abc import Mapping, Sequence

from benchflow_contracts import EnvironmentError_

from .manifest import Invariant
from .sandbox_shell import SandboxShell, tail_of
from .state import StateStore

_SEC = 300


async def check_invariants(
    shell: SandboxShell, store: StateStore | None, declared: Sequence[Invariant]
) -> None:
    """Check each invariant, and name all broken ones in the error.

    Raises:
        EnvironmentError_: An invariant is broken, or cannot be checked.
    """
    queries = {each.name: (each.state, each.sql) for each in declared if each.state and each.sql}
    answers: Mapping[str, object] = await store.ask(queries) if store and queries else {}
    broken: list[str] = []
    for each in declared:
        value = answers[each.name] if each.sql else await _run(shell, each)
        if each.expect is not None and not _equal(value, each.expect):
            broken.append(f"{each.name!r}: expected {each.expect!r}, got {str(value)[:200]!r}")
    if broken:
        raise EnvironmentError_(
            f"the world breaks {len(broken)} of its invariants: {'; '.join(broken)}",
            hint="it was forked during a change, or the manifest is wrong",
        )


async def _run(shell: SandboxShell, invariant: Invariant) -> str:
    assert invariant.command is not None, "cross_problems requires one of `sql` and `command`"
    result = await shell.run(["sh", "-c", invariant.command], timeout=_SEC)
    if invariant.expect is None and not result.ok:
        raise EnvironmentError_(f"invariant {invariant.name!r} is broken: {tail_of(result)}")
    return result.stdout.strip()


def _equal(value: object, expected: str | float | bool) -> bool:
    if isinstance(expected, bool):
        return str(value).lower() in (("true", "t", "1") if expected else ("false", "f", "0"))
    if isinstance(expected, str):
        return str(value) == expected
    try:
        return float(str(value)) == float(expected)
    except ValueError:
        return False
