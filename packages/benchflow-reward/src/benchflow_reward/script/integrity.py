"""The integrity report: the agent's changes that can influence the tests."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from benchflow_contracts import (
    FileChanges,
    Integrity,
    RewardError,
    Sandbox,
    SandboxUnsupportedError,
    TaskVerifier,
    TracksFileChanges,
    TransferError,
)
from benchflow_contracts.scratch import scratch_directory

from .grading_protocol import LiveNode
from .sandbox_listing import compare_sandboxes
from .search_paths import list_search_paths
from .shadowing import find_shadowing_modules
from .symlinks import find_linked_names
from .tamper_rules import LOADER_CACHE, PASSWD, Change, Grade, TamperRules
from .verifier_env import pinned_env
from .writable_paths import find_writable_paths

MAX_FINDINGS = 50
_MAX_TESTS, _MAX_PASSWD = 4 << 20, 1 << 20
_MAX_ASKED = 64
_MAX_OFFERS, _MAX_OFFER = 64, 1 << 20
_NOT_AN_AGENTS = frozenset(
    {"", "bin", "etc", "lib", "lib64", "logs", "sbin", "tests", "usr", "evidence", "tests-tools"}
)
_PLAIN_USER = re.compile(r"[1-9][0-9]{0,8}")
"""A user id that cannot be read as root's."""
_SHELLS = frozenset(
    f"{d}/{name}" for d in ("/bin", "/usr/bin") for name in ("ash", "bash", "dash", "sh", "zsh")
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One change that can influence the tests."""

    path: str
    change: Change
    grade: Grade


async def read_changed_files(sandbox: Sandbox) -> FileChanges | None:
    """Return the files that the agent changed, or `None` if the provider does not track them.

    Raises:
        SandboxError: The provider tracks changes, and failed.
    """
    if isinstance(sandbox, TracksFileChanges):
        try:
            return await sandbox.changed_files()
        except SandboxUnsupportedError:
            return None
    return None


def agent_dirs(workdir: str) -> list[str]:
    """Return the directories for the agent's own work. System directories never count."""
    top = (*PurePosixPath(workdir).parts, "", "")[1]
    own = [] if top in _NOT_AN_AGENTS and not workdir.startswith("/usr/src/") else [workdir]
    return [*own, "/home", "/root", "/tmp", "/var/tmp"]  # noqa: S108 - inside the sandbox


async def make_tamper_rules(
    live: LiveNode,
    sandbox: Sandbox,
    changes: FileChanges | None = None,
    *,
    verifier: TaskVerifier | None = None,
    agent_workdir: str = "",
) -> TamperRules:
    """Return the paths that can influence the tests of a task in `sandbox`, which has `changes`.

    `verifier` replaces the task's own. `agent_workdir` is where the agent worked, if that was not
    the working directory of `sandbox`.

    Raises:
        RewardError: The sandbox does not say what it offers them.
    """
    tests, protocol = live.task.parts.tests, live.protocol.rules
    verifier = verifier or live.task.config.verifier
    env = pinned_env(verifier) if protocol.pins_variables else verifier.env
    told = await list_search_paths(
        sandbox, user=verifier.user, env=env, workdir=sandbox.spec.workdir
    )
    image = told.without(() if changes is None else changes.added)
    dirs = agent_dirs(sandbox.spec.workdir)
    dirs += [each for each in agent_dirs(agent_workdir) if each not in dirs]
    text = await asyncio.to_thread(read_tests, tests)
    # The tests use the PATH of the image. A shell may fall back to the pinned one.
    path = f"{image.variables.get('PATH', '')}:{pinned_env(verifier)['PATH']}"
    return TamperRules.of(
        text,
        dirs,
        path,
        verifier.expects_changes,
        pinned=protocol.pins_variables,
        graders=protocol.grader_paths,
        image=image,
        workdir=sandbox.spec.workdir,
    )


def read_tests(tests: Sequence[Path]) -> bytes:
    """Return the text of all files of the tests, up to a limit. Reads files."""
    files = (each for place in tests for each in sorted(place.rglob("*")) if each.is_file())
    return b"\n".join(each.read_bytes()[:_MAX_TESTS] for each in files)[:_MAX_TESTS]


async def integrity_report(
    twin: Sandbox, changes: FileChanges, rules: TamperRules, *, user: str
) -> dict[str, Any]:
    """Grade the agent's changes by their possible influence on tests that `user` runs in the twin.

    `tampered`: it may have steered them: the grader's own paths and links into them, the
    commands, libraries and start-up files that the tests use, under whatever name they are
    found. `suspicious`: it looks so, and may be honest work. Installing a package that no test
    calls is neither. A cache of the loader is made anew and not graded.
    """
    known = changes_by_path(changes)
    through, dark = await find_linked_names(twin, known, changes.links, rules)
    known = through | known
    if known.get(LOADER_CACHE) and await _rebuild_loader_cache(twin):
        del known[LOADER_CACHE]
    plugins: set[str] = set()
    if rules.plugins:
        loaded = [p for p in known if rules.finds_packages(p) and not rules.expects(p)]
        plugins = await find_added_plugins(twin, {p: known[p] for p in loaded}, changes.links)
    said = await _grade_by_content(twin, known, rules)
    hiding = await find_shadowing_modules(twin, known, rules)
    opened = await find_writable_paths(twin, known, rules)
    said.update(dict.fromkeys(plugins | dark | hiding | opened, "tampered"))
    if known.get(PASSWD) and user in {"root", "0", ""} and await _root_is_root(twin):
        del known[PASSWD]
    # In a thread, because an agent may have left a million files.
    return _report(await asyncio.to_thread(_graded, known, changes.links, rules, said))


def _graded(
    known: Mapping[str, Change],
    links: Mapping[str, str],
    rules: TamperRules,
    said: Mapping[str, Grade],
) -> list[Finding]:
    found = [
        Finding(path, change, grade)
        for path, change in sorted(known.items())
        if (grade := _worst_grade(rules.grade(path, change, links), said.get(path)))
    ]
    # The worst first: only so many are shown.
    found.sort(key=lambda finding: finding.grade != "tampered")
    return found


async def report_from_listings(
    twin: Sandbox, pristine: Sandbox, rules: TamperRules, *, user: str
) -> dict[str, Any]:
    """Grade by listings made in both sandboxes. One that cannot be made is `tampered`."""
    try:
        changes = await compare_sandboxes(twin, pristine, rules.agent_dirs)
    except RewardError as error:
        return {"grade": "tampered", "findings": [], "count": 0, "by": "twin", "error": str(error)}
    return {**await integrity_report(twin, changes, rules, user=user), "by": "twin"}


def report_beside_agent(report: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the report on tests that run beside the agent's processes. It is never `clean`.

    `report` is on the files from before the tests; `None` where nothing is known of them.
    """
    unknown: Mapping[str, Any] = {"findings": [], "count": 0, "by": "nobody"}
    told = unknown if report is None else report
    grade: Integrity = "tampered" if told.get("grade") == "tampered" else "suspicious"
    return {**told, "grade": grade, "beside": "the agent's processes may run beside the tests"}


def _report(found: Sequence[Finding]) -> dict[str, Any]:
    grade: Integrity = "clean"
    if found:
        grade = found[0].grade
    shown = [asdict(finding) for finding in found[:MAX_FINDINGS]]
    return {"grade": grade, "findings": shown, "count": len(found), "by": "host"}


def changes_by_path(changes: FileChanges) -> dict[str, Change]:
    """Return what happened to each path."""
    kinds: Mapping[Literal["added", "removed", "changed"], Sequence[str]] = {
        "added": changes.added,
        "removed": changes.removed,
        "changed": changes.changed,
    }
    return {path: kind for kind, paths in kinds.items() for path in paths}


async def _rebuild_loader_cache(twin: Sandbox) -> bool:
    # Without new links: a library may claim the name of another.
    return (await twin.exec(["/sbin/ldconfig", "-X"], user="root", cwd="/", timeout=60)).ok


async def _grade_by_content(
    twin: Sandbox, known: Mapping[str, Change], rules: TamperRules
) -> dict[str, Grade]:
    """Grade files by their content. Files beyond the limit count as matches."""
    asked = {path: found for path in known if (found := rules.content_check(path, known))}
    told: dict[str, Grade] = {path: grade for path, (_, grade) in asked.items()}
    for path, (what, _) in list(asked.items())[:_MAX_ASKED]:
        if not await _matches_content(twin, path, what):
            del told[path]
    return told


def _worst_grade(one: Grade | None, other: Grade | None) -> Grade | None:
    return "tampered" if "tampered" in {one, other} else one or other


async def _matches_content(twin: Sandbox, path: str, what: Callable[[bytes], bool]) -> bool:
    """Whether the content of a file matches. A file that cannot be read counts as a match."""
    with scratch_directory("says") as scratch:
        local = scratch / "file"
        try:
            await twin.download(path, local, max_bytes=_MAX_PASSWD)
        except TransferError:
            return True
        return local.is_file() and what(local.read_bytes())


async def _root_is_root(twin: Sandbox) -> bool:
    """Whether the users' file has the usual entry of root, and root's id for no other user."""
    with scratch_directory("passwd") as scratch:
        local = scratch / "passwd"
        try:
            await twin.download(PASSWD, local, max_bytes=_MAX_PASSWD)
        except TransferError:
            return False
        lines = local.read_text("utf-8", "replace").splitlines()
    fields = next((line for line in lines if line.startswith("root:")), "").split(":")
    if len(fields) != 7 or fields[2:4] != ["0", "0"] or fields[5] != "/root":
        return False
    # Tests that drop their privileges must not become root again under another name.
    others = (line.split(":") for line in lines if not line.startswith(("root:", "#")))
    return fields[6] in _SHELLS and all(
        len(each) < 3 or _PLAIN_USER.fullmatch(each[2]) is not None for each in others
    )


async def find_added_plugins(
    twin: Sandbox, changes: Mapping[str, Change], links: Mapping[str, str]
) -> set[str]:
    """Return which of `changes` have pytest load what their package offers it.

    What is there and cannot be read counts: a link, more than 1 MiB, and all beyond the 64th.
    So does a link in the place of a package's own directory.
    """
    there = [path for path, change in changes.items() if change != "removed"]
    linked = {path for path in there if path in links and path.lower().endswith("-info")}
    # The interpreter looks for the directory in any letter case.
    offers = [path for path in there if path.lower().endswith("-info/entry_points.txt")]
    found = {path for path in offers[:_MAX_OFFERS] if await _offers_plugin(twin, path)}
    return linked | found | {*offers[_MAX_OFFERS:]}


async def _offers_plugin(twin: Sandbox, path: str) -> bool:
    with scratch_directory("offers") as scratch:
        local = scratch / "offers"
        try:
            await twin.download(path, local, max_bytes=_MAX_OFFER)
        except TransferError:
            return True
        return local.is_file() and b"pytest11" in local.read_bytes()
