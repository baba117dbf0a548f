"""List the commands, libraries and packages that programs of the tests find by name."""

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePosixPath

from benchflow_contracts import RewardError, Sandbox

from .gems import gem_names

_LIST = r"""for n in PATH HOME BASH_ENV ENV LD_LIBRARY_PATH NODE_PATH PERL5LIB PYTHONPATH RUBYLIB
do
  eval "v=\${$n-}"; printf 'v%s=%s\0' "$n" "$v"
done
show() { [ -L "$1" ] || [ -L "${1%/*}" ] || printf 'f%s\0' "$1"/*; }
plugins() {
  for e in "$1"/*-info/entry_points.txt; do
    [ -f "$e" ] || continue
    printf 'e[]\0'
    while IFS= read -r l || [ -n "$l" ]; do printf 'e%s\0' "$l"; done < "$e"
  done
}
nodes() { show "$1"; show "$1/.bin"; for n in "$1"/@*; do show "$n"; done; }
gems() { for g in "$1/specifications" "$1/specifications/default"; do show "$g"; done; }
nodes "$1/node_modules"
nodes /usr/share/nodejs
for r in /var/lib/gems/* /usr/share/rubygems-integration/* /usr/lib/*/rubygems-integration/*; do
  gems "$r"
done
for d in /lib /lib64 /usr/lib /usr/lib64 /usr/local/lib; do
  show "$d"
  for t in "$d"/*-linux-*; do [ -L "$d" ] || show "$t"; done
done
IFS=:
for d in $PATH; do
  show "$d"
  [ ! -L "$d" ] || continue
  for s in "${d%/*}"/lib/python3*/*-packages; do show "$s"; plugins "$s"; done
  nodes "${d%/*}/lib/node_modules"
  gems "${d%/*}"
  for r in "${d%/*}"/lib/ruby/gems/*; do gems "$r"; done
done
for d in $NODE_PATH; do nodes "$d"; done
printf 'end\0'
"""
"""Uses shell built-ins alone: other programs need more libraries than a shell."""

_TIMEOUT_SEC = 60


@dataclass(frozen=True)
class SearchPaths:
    """The variables of the tests, and the commands, libraries and packages of the sandbox."""

    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    paths: frozenset[str] = frozenset()
    """The paths in the directories of commands, libraries and packages."""
    plugins: frozenset[str] = frozenset()
    """Top-level Python modules that test runners load by themselves."""

    def without(self, added: Iterable[str]) -> "SearchPaths":
        """Return the search paths without the files that the agent added."""
        return replace(self, paths=self.paths - frozenset(added))

    @cached_property
    def libraries(self) -> frozenset[str]:
        """The names of the shared libraries."""
        return frozenset(PurePosixPath(path).name for path in self.paths if ".so" in path)

    @cached_property
    def packages(self) -> frozenset[str]:
        """The names of the top modules that are installed."""
        found = (PurePosixPath(path) for path in self.paths)
        return frozenset(p.name.split(".")[0] for p in found if p.parent.name.endswith("-packages"))

    @cached_property
    def gems(self) -> frozenset[str]:
        """The names of the gems."""
        return gem_names(self.paths)

    def directories(self, variable: str, workdir: str) -> list[str]:
        """Return the directories that a variable lists; an empty one is `workdir`."""
        listed = self.variables.get(variable, "")
        found = [posixpath.join(workdir, each) for each in listed.split(":")] if listed else []
        return [posixpath.normpath(each) for each in found]


async def list_search_paths(
    sandbox: Sandbox, *, user: str, env: Mapping[str, str], workdir: str
) -> SearchPaths:
    """List the programs of a sandbox for `user` (empty: the sandbox's own) with `env`.

    Only a shell answers. A shell that was replaced may lie; the report names the replacement.

    Raises:
        RewardError: The answer is not whole.
    """
    cmd = ["/bin/sh", "-c", _LIST, "sh", workdir.rstrip("/")]
    done = await sandbox.exec(cmd, user=user or None, cwd="/", timeout=_TIMEOUT_SEC, env=env)
    records = done.stdout.split("\0")
    if not done.ok or done.stdout_dropped or records[-2:] != ["end", ""]:
        raise RewardError(
            f"what the tests find in a sandbox cannot be listed: {done.stderr[-300:]}",
            caused_by="inside",
        )
    told: dict[str, list[str]] = {"v": [], "f": [], "e": []}
    for record in records[:-2]:
        told.get(record[:1], []).append(record[1:])
    variables = dict(each.split("=", 1) for each in told["v"] if "=" in each)
    return SearchPaths(variables, frozenset(told["f"]), frozenset(_plugins(told["e"])))


def _plugins(lines: Iterable[str]) -> Iterable[str]:
    section = ""
    for line in map(str.strip, lines):
        if line.startswith("["):
            section = line
        elif section == "[pytest11]" and "=" in line:
            yield line.split("=", 1)[1].strip().split(":")[0].split(".")[0]
