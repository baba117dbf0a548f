"""Find modules of the agent that Perl, Ruby and Lua load instead of the image's modules."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from posixpath import dirname

from benchflow_contracts import RewardError, Sandbox

from .configuration import LUA, PERL, RUBY
from .tamper_rules import Change, TamperRules

_BATCH = 500
_MAX_MODULES = 20_000
"""The most new modules that are checked. If there are more, all count as shadowing."""
_TIMEOUT_SEC = 60

_FIND = r"""for n in "$@"; do
  for r in {roots}; do
    [ ! -L "$r" ] || continue
    for f in "$r/$n".* "$r/$n"/init.lua; do [ ! -f "$f" ] || printf '%s\0%s\0' "$n" "$f"; done
  done
done
printf 'end\0'"""
"""Uses shell built-ins alone: an interpreter would run code of the agent."""


@dataclass(frozen=True, slots=True)
class _Language:
    """The directories in which an interpreter looks for modules, in order."""

    commands: frozenset[str]
    variable: str
    """Of the image's; its directories go first."""
    new: re.Pattern[str] | None
    """In its own directories: the rest of the path is the `module`'s name."""
    suffixes: tuple[str, ...]
    roots: str
    """Of all installations, in the order of each, as a shell's patterns."""

    def names(self, paths: Iterable[str], first: Sequence[str]) -> dict[str, str]:
        """Return the names of the modules among `paths`, some of which lie in `first`."""
        found: dict[str, str] = {}
        for path in paths:
            suffix = next((each for each in self.suffixes if path.endswith(each)), None)
            if suffix is None:
                continue
            own = self.new.match(path) if self.new is not None else None
            place = next((f"{each}/" for each in first if path.startswith(f"{each}/")), "")
            start = own.end() if own is not None else len(place)
            if start:
                found[path] = path[start : -len(suffix)]
        return found


_PERLS = r"(core_perl|site_perl|vendor_perl|\d[\d.]*|[a-z0-9_]+-linux[\w-]*)/"
_LANGUAGES = (
    _Language(
        PERL,
        "PERL5LIB",
        re.compile(
            r"/etc/perl/|/usr/(local/)?(lib(64)?|share)/([a-z0-9_]+-linux-[a-z0-9]+/)?"
            rf"(perl|perl5|perl-base|site_perl)/({_PERLS})*"
        ),
        (".pm", ".pmc", ".pl", ".ph", ".al", ".so"),
        "/etc/perl /usr/local/lib/*/perl/5* /usr/local/share/perl/5*"
        " /usr/local/lib*/perl5/site_perl/5*/*-linux* /usr/local/lib*/perl5/site_perl/5*"
        " /usr/local/lib*/perl5/site_perl /usr/local/share/perl5/site_perl"
        " /usr/local/lib*/perl5/5*/*-linux* /usr/local/lib*/perl5/5* /usr/local/share/perl5/5*"
        " /usr/lib/*/perl5/5* /usr/lib*/perl5/vendor_perl /usr/share/perl5/vendor_perl"
        " /usr/lib*/perl5/core_perl /usr/share/perl5/core_perl /usr/lib64/perl5 /usr/share/perl5"
        " /usr/lib/*/perl-base /usr/lib/*/perl/5* /usr/share/perl/5* /usr/local/lib/site_perl",
    ),
    _Language(
        RUBY,
        "RUBYLIB",
        None,
        (".rb", ".so"),
        "/usr/lib/ruby/vendor_ruby /usr/lib/ruby/[0-9]* /usr/lib/*/ruby/[0-9]*"
        " /usr/local/lib/ruby/[0-9]* /usr/local/lib/ruby/[0-9]*/*-linux*",
    ),
    _Language(
        LUA,
        "",
        re.compile(r"/usr/(local/)?(lib|share)/([a-z0-9_]+-linux-[a-z0-9]+/)?lua/\d[\d.]*/"),
        ("/init.lua", ".lua", ".so"),
        "/usr/local/share/lua/5* /usr/local/lib/lua/5* /usr/share/lua/5* /usr/lib/*/lua/5*"
        " /usr/lib/lua/5*",
    ),
)


async def find_shadowing_modules(
    twin: Sandbox, known: Mapping[str, Change], rules: TamperRules
) -> set[str]:
    """Return the new files that hide a module of the image's from interpreters of the tests.

    Raises:
        RewardError: The twin does not list the modules with these names.
    """
    new = [path for path, change in known.items() if change == "added" and not rules.expects(path)]
    hiding: set[str] = set()
    for language in _LANGUAGES:
        if language.commands & rules.words:
            first = rules.image.directories(language.variable, rules.workdir)
            names = language.names(new, first)
            if len(names) > _MAX_MODULES:
                return {*hiding, *names}
            there = await _there(twin, language, sorted({*names.values()}))
            image = {n: [f for f in there.get(n, ()) if known.get(f) != "added"] for n in there}
            hiding |= {p for p, n in names.items() if _hides(p, there.get(n, ()), image.get(n, ()))}
    return hiding


def _hides(path: str, there: Sequence[str], image: Sequence[str]) -> bool:
    """Whether a search in the order of `there` finds `path` before a module of the image."""
    here = there.index(path) if path in there else 0
    return any(there.index(f) >= here or dirname(f) == dirname(path) for f in image)


async def _there(
    twin: Sandbox, language: _Language, names: Sequence[str]
) -> dict[str, Sequence[str]]:
    """Return the modules with these names, in the order of the search."""
    found: dict[str, list[str]] = {}
    for start in range(0, len(names), _BATCH):
        script = _FIND.replace("{roots}", language.roots)
        cmd = ["/bin/sh", "-c", script, "sh", *names[start : start + _BATCH]]
        done = await twin.exec(cmd, user="root", cwd="/", timeout=_TIMEOUT_SEC)
        told = done.stdout.split("\0")
        if not done.ok or done.stdout_dropped or told[-2:] != ["end", ""] or len(told) % 2:
            raise RewardError(
                f"which modules a twin has cannot be told: {done.stderr[-300:]}", caused_by="inside"
            )
        for name, path in zip(told[:-2:2], told[1:-2:2], strict=True):
            if path.endswith(tuple(f"/{name}{suffix}" for suffix in language.suffixes)):
                found.setdefault(name, []).append(path)
    return dict(found)
