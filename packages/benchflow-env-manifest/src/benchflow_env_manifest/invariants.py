"""Conditions that hold in every state of the world."""

from collections.abc import Mapping, Sequence

from benchflow_contracts import EnvironmentError_

from .manifest import Invariant
from .sandbox_shell import SandboxShell, tail_of
from .state import StateStore

_SEC = 300


async def check_invariants(
    shell: SandboxShell, store: StateStore | None, declared: Sequence[Invariant]
) -> None:
    """Check each invariant, and name all that do not hold.

    Raises:
        EnvironmentError_: An invariant does not hold, or cannot be checked.
    """
    queries = {each.name: (each.state, each.sql) for each in declared if each.state and each.sql}
    answers: Mapping[str, object] = await store.ask(queries) if store and queries else {}
    broken: list[str] = []
    for each in declared:
        said = answers[each.name] if each.sql else await _run(shell, each)
        if each.expect is not None and not _equal(said, each.expect):
            broken.append(f"{each.name!r}: expected {each.expect!r}, got {str(said)[:200]!r}")
    if broken:
        raise EnvironmentError_(
            f"the world breaks {len(broken)} of its invariants: {'; '.join(broken)}",
            hint="it was forked in the middle of a change, or the manifest is wrong",
        )


async def _run(shell: SandboxShell, each: Invariant) -> str:
    assert each.command is not None, "cross_problems demands one of `sql` and `command`"
    result = await shell.run(["sh", "-c", each.command], timeout=_SEC)
    if each.expect is None and not result.ok:
        raise EnvironmentError_(f"invariant {each.name!r} does not hold: {tail_of(result)}")
    return result.stdout.strip()


def _equal(said: object, expected: str | float | bool) -> bool:
    if isinstance(expected, bool):
        return str(said).lower() in (("true", "t", "1") if expected else ("false", "f", "0"))
    if isinstance(expected, str):
        return str(said) == expected
    try:
        return float(str(said)) == float(expected)
    except ValueError:
        return False
