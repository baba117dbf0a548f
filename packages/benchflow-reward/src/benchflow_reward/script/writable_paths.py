"""Find paths that users other than root can write: tests may run the agent's code as one."""

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from benchflow_contracts import RewardError, Sandbox

from .tamper_rules import Change, TamperRules

_BATCH = 500
_MAX_PATHS = 20_000
"""The most paths that are checked. Paths beyond this number count as writable."""
_TIMEOUT_SEC = 60
_NOBODY = "65534"
_PLACES = re.compile(
    r"/etc(/[^/]+)?"
    r"|/usr(/local)?(/lib(32|64|x32|exec)?(/[^/]+-linux-[^/]+)?)?"
    r"|/lib(32|64|x32)?(/[^/]+-linux-[^/]+)?"
    r"|.*/(site|dist)-packages(/.*)?"
    r"|.*/lib(64)?/python\d[^/]*(/.*)?"
)
"""Where programs of the tests look for libraries, modules and settings."""


async def find_writable_paths(
    twin: Sandbox, known: Mapping[str, Change], rules: TamperRules
) -> set[str]:
    """Return which changed files and directories other users than root may write to.

    Of those where programs of the tests look: an agent that is root can open them, and its code,
    which the tests run as `nobody`, then puts there what root's next program loads. An access
    control list counts as well.

    Raises:
        RewardError: The twin does not list them.
    """
    asked = [
        path for path, change in known.items() if change != "removed" and _matters(path, rules)
    ]
    # No program looks for a name with odd characters.
    asked = sorted(path for path in asked if path.isprintable() and "\\" not in path)
    found = set(asked[_MAX_PATHS:])
    for start in range(0, len(asked[:_MAX_PATHS]), _BATCH):
        found |= await _open(twin, asked[start : start + _BATCH])
    return found


def _matters(path: str, rules: TamperRules) -> bool:
    if rules.expects(path):
        return False
    home = rules.home
    if rules.at_home and (path == home or path.startswith((f"{home}/.local/", f"{home}/.config/"))):
        return True
    commands = {*rules.path_dirs, *map(posixpath.dirname, rules.path_dirs)}
    if path in commands - {"/"}:
        return True
    own = any(PurePosixPath(path).is_relative_to(place) for place in rules.agent_dirs)
    return not own and _PLACES.fullmatch(path) is not None


async def _open(twin: Sandbox, paths: Sequence[str]) -> set[str]:
    cmd = ["ls", "-ldn", "--", *paths]
    done = await twin.exec(cmd, user="root", cwd="/", timeout=_TIMEOUT_SEC)
    # What a host makes for each sandbox, such as /etc/hostname, may be missing here.
    if done.stdout_dropped or done.exit_code not in (0, 1, 2):
        raise RewardError(
            f"who may write to files of a twin is not known: {done.stderr[-300:]}",
            caused_by="inside",
        )
    return set(_writable(done.stdout.splitlines(), paths))


def _writable(lines: Iterable[str], paths: Sequence[str]) -> Iterable[str]:
    named = {*paths}
    for line in lines:
        mode, _, user, group, *_ = [*line.split(), "", "", "", ""]
        path = line[line.find(" /") + 1 :]
        if path not in named or mode.startswith("l"):
            continue
        others = mode[8:9] == "w" or mode.endswith("+")
        if others or user == _NOBODY or (group == _NOBODY and mode[5:6] == "w"):
            yield path
