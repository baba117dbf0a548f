"""Observe the files that the verifier opens, and add findings to the report."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from benchflow_contracts import (
    FileChanges,
    ObservedFiles,
    Sandbox,
    SandboxUnsupportedError,
    SupportsFileObservation,
)

from .aliases import Aliases, find_aliases
from .integrity import MAX_FINDINGS, changes_by_path
from .layout import TESTS, VERIFIER_LOGS
from .opened_files import ExpectedCode, OpenedFileFinding, grade_opened_files, has_code_name
from .tamper_rules import Change

_GRADERS = (f"{TESTS}/", f"{VERIFIER_LOGS}/")


@dataclass(slots=True)
class ObservedRun:
    """The changed files that one run of the verifier opened."""

    known: Mapping[str, Change] = field(default_factory=dict[str, Change])
    observed: ObservedFiles | None = None
    aliases: Aliases = field(default_factory=Aliases)
    unseen: str = ""
    """The reason why some code of the agent may be loaded unobserved."""
    why_not: str = ""
    """The reason why nothing was observed."""

    def added_to(self, report: Mapping[str, Any], expected: ExpectedCode) -> dict[str, Any]:
        """Return the report with the files that the verifier loaded although no test names them.

        A run that was not observed in full is not `clean`. One that cannot be observed on this
        machine keeps its grade, and says so.
        """
        if self.observed is None:
            return {**report, "observed": {"state": "unsupported", "why": self.why_not}}
        found = grade_opened_files(self.observed, self.known, expected, self.aliases)
        found += [
            OpenedFileFinding(link, self.known.get(link, "added"), "tampered", "", 0)
            for link, real in self.aliases.leads.items()
            if f"{real}/".startswith(_GRADERS) and not expected.rules.expects(link)
        ]
        seen = {each.path for each in self.observed.opened} & self.known.keys()
        told: dict[str, Any] = {"state": "complete", "opened": len(seen)}
        grades = {report["grade"], *(each.grade for each in found)}
        lost = self.observed.lost or self.unseen
        if lost:
            told |= {"state": "incomplete", "why": lost}
            grades.add("suspicious")
        grade = next(each for each in ("tampered", "suspicious", "clean") if each in grades)
        return {**_merge_findings(report, found), "grade": grade, "observed": told}


@asynccontextmanager
async def observe_changed_files(
    sandbox: Sandbox, changes: FileChanges | None, mounts: Collection[str] = ()
) -> AsyncGenerator[ObservedRun]:
    """Observe which of the changed files are opened in `sandbox` while the block runs.

    Those in `mounts`, the agent's volumes, cannot be observed: code there makes it incomplete.

    Raises:
        SandboxError: The observation failed, so that the verifier may have been disturbed.
        RewardError: The sandbox does not say where the agent's links lead.
    """
    if changes is None:
        yield ObservedRun(why_not="this sandbox's host cannot tell what the agent changed")
        return
    if not isinstance(sandbox, SupportsFileObservation):
        yield ObservedRun(why_not="this sandbox cannot observe the files that are opened")
        return
    known: dict[str, Change] = {
        path: change for path, change in changes_by_path(changes).items() if change != "removed"
    }
    also = await find_aliases(sandbox, changes)

    def wanted(path: str) -> bool:
        return path in known or path.startswith(f"{TESTS}/") or also.is_reached(path)

    async with AsyncExitStack() as stack:
        try:
            observing = sandbox.observe_files(wanted)
            observed = await stack.enter_async_context(observing)
        except SandboxUnsupportedError as error:
            watch = ObservedRun(why_not=str(error))
        else:
            watch = ObservedRun(known, observed, also, _why_incomplete(mounts, known, also))
        yield watch


def _why_incomplete(mounts: Collection[str], known: Mapping[str, Change], links: Aliases) -> str:
    """Say why code of the agent's may be loaded unobserved; nothing if all of it is observed."""
    if not links.is_whole:
        return "the agent left too many links to follow"
    places = tuple(f"{place.rstrip('/')}/" for place in mounts)
    if not places:
        return ""
    code = [path for path in known if path.startswith(places) and has_code_name(path)]
    code += [link for link, real in links.leads.items() if f"{real}/".startswith(places)]
    return f"volumes are not observed, and {min(code)!r} is in one" if code else ""


def _merge_findings(
    report: Mapping[str, Any], found: Sequence[OpenedFileFinding]
) -> dict[str, Any]:
    """Put observed files first: only some of the findings are shown."""
    before = {each["path"]: each for each in report["findings"]}
    added = {each.path: asdict(each) for each in found}
    for path, each in added.items():
        if path in before and before[path]["grade"] == "tampered":
            each["grade"] = "tampered"
    shown = [*added.values(), *(each for path, each in before.items() if path not in added)]
    shown.sort(key=lambda each: each["grade"] != "tampered")
    count = report["count"] + len(added.keys() - before.keys())
    return {**report, "findings": shown[:MAX_FINDINGS], "count": count}
