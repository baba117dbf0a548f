"""The files that programs read at their start, apart from commands, libraries and modules."""

import posixpath
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property


def words(text: str) -> frozenset[str]:
    """Return the words of a table."""
    return frozenset(text.split())


@dataclass(frozen=True)
class _Read:
    """Files that `commands` read; all of them where there is no command."""

    commands: frozenset[str]
    expression: str
    also_new: bool = True
    """Whether one that was not there before is read, too."""

    @cached_property
    def where(self) -> re.Pattern[str]:
        """The paths of the files. It is compiled for the first changed file."""
        return re.compile(self.expression)


_C = words("cc c++ gcc g++ clang clang++ make cmake cargo go")
PERL, RUBY = words("perl prove"), words("ruby rake rspec bundle gem")
LUA = words("lua lua5.1 lua5.2 lua5.3 lua5.4 luajit busted")
NODE, _PHP = words("node nodejs npm npx yarn pnpm"), words("php phpunit composer")
_R = words("R Rscript")
_TRIPLE = r"([a-z0-9_]+-linux-[a-z0-9]+/)?"
_C_NAMES = (
    r"assert|complex|ctype|errno|fenv|float|inttypes|limits|locale|math|setjmp|signal|stdalign"
    r"|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib|stdnoreturn|string|tgmath|threads|time"
    r"|uchar|unistd|wchar|wctype|features|alloca|strings|fcntl"
)
_C_HEADERS = rf"({_C_NAMES})\.h|(bits|sys|gnu|asm|linux)/.+"
_CPP_HEADERS = (
    rf"c({_C_NAMES})|algorithm|any|array|atomic|bit|bitset|charconv|chrono|deque|exception"
    r"|expected|filesystem|format|fstream|functional|future|initializer_list|iomanip|ios|iosfwd"
    r"|iostream|istream|iterator|limits|list|locale|map|memory|mutex|new|numbers|numeric|optional"
    r"|ostream|queue|random|ranges|ratio|regex|set|span|sstream|stack|stdexcept|streambuf|string"
    r"|string_view|thread|tuple|type_traits|typeindex|typeinfo|unordered_map|unordered_set"
    r"|utility|valarray|variant|vector"
)
_SYSTEM = (
    _Read(frozenset(), r"/openssl\.cnf$|/gconv/"),
    _Read(_C, r"^/usr/(local/)?lib(exec)?(32|64)?/gcc/"),
    _Read(_C, rf"^/usr/(local/)?include/{_TRIPLE}({_C_HEADERS})$"),
    _Read(_C, rf"^/usr/local/include/({_CPP_HEADERS})$"),
    _Read(_C, r"^/usr/(local/)?include/.", also_new=False),
    _Read(_C, r"^/usr/[a-z0-9_]+-linux-[a-z0-9]+/"),
    _Read(PERL, r"^/usr/(local/)?share/perl5?/.", also_new=False),
    _Read(PERL, r"/perl(5|/[^/]+)/JSON/XS\.pm$"),  # which JSON takes if it is there
    _Read(RUBY, r"/(site|vendor)_ruby/.*\.(rb|so)$"),
    _Read(RUBY, r"/(gems|specifications)/.", also_new=False),
    _Read(LUA, r"^/usr/(local/)?share/lua/.", also_new=False),
    _Read(NODE, r"^/(node_modules/.|package\.json$)"),
    _Read(NODE, r"^/usr/share/nodejs/.", also_new=False),
    _Read(_PHP, r"/php(-\w+)?\.ini$|/php/(.*/)?conf\.d/"),
    _Read(words("npm npx"), r"/(etc|npm)/npmrc$"),
    _Read(words("git"), r"/git-core/."),
    _Read(_R, r"^/etc/R/.|/R/etc/."),
)
_HOME = (
    _Read(words("curl"), r"^\.(config/\.?)?curlrc$"),
    _Read(words("npm npx"), r"^\.npmrc$"),
    _Read(words("pip"), r"(^|/)\.?pip(/|\.)(pip\.)?conf$"),
    _Read(words("uv"), r"(^|/)uv\.toml$"),
    _Read(words("wget"), r"^\.wgetrc$"),
    _Read(words("jq"), r"^\.jq(/|$)"),
    _Read(words("sqlite3"), r"^\.sqliterc$|/sqlite3/sqliterc$"),
    _Read(words("prove"), r"^\.proverc$"),
    _Read(words("psql"), r"^\.psqlrc$"),
    _Read(words("gdb"), r"^\.gdb(early)?init$|/gdb/gdb(early)?init$"),
    _Read(_R, r"^\.(Rprofile|Renviron)$"),
    _Read(words("julia"), r"^\.julia/config/startup\.jl$"),
    _Read(words("octave"), r"^\.octaverc$"),
    _Read(words("rspec"), r"^\.rspec$|/rspec/options$"),
    _Read(NODE, r"^\.node_(modules|libraries)/"),
)
_HERE = (
    _Read(words("prove"), r"^\.proverc$"),
    _Read(_R, r"^\.(Rprofile|Renviron)$"),
)

_RUNS = (
    rb"(?im)(?:^|[\s\]\xbf])(fsmonitor|hookspath|external|textconv|\w*command|clean|smudge|process"
    rb"|driver|templatedir|program|packobjectshook|helper|askpass|gitproxy|pager|editor|cmd|vcs"
    rb"|difffilter|uploadpack|receivepack|tunnel|\w*insteadof)[^\S\n]*=[^\S\n]*(?P<value>.*)$"
)
"""Keys, after sections on the same line or the mark of UTF-8."""
_GIT_RUNS = re.compile(_RUNS)
_GIT_LEADS = re.compile(rb"(?i)\[\s*(include|pager\b)|=\s*\"?!|\bext::")
"""Other files, commands of a pager by the name of git's own one, and commands as values."""
_GIT_FILE = re.compile(r"/(\.git/(.+/)?config(\.worktree)?|\.gitconfig|git/config)$")
_HARMLESS = re.compile(
    rb'(?i)"?(true|false|git-lfs[\w %-]*|cache|store|cat|less|more|vim?|nano|emacs|gpg2?)?"?\s*$'
)
_CLIENT_HOOKS = words(
    """applypatch-msg commit-msg fsmonitor-watchman post-applypatch post-checkout post-commit
    post-index-change post-merge post-rewrite pre-applypatch pre-commit pre-merge-commit pre-push
    pre-rebase prepare-commit-msg reference-transaction"""
)
_SERVER_HOOKS = words(
    "pre-receive update post-receive post-update proc-receive push-to-checkout sendemail-validate"
)
_AT_HOME = re.compile(r"\.[^/]+|\.config/.+|\.[^/]+/[^/]*(conf|init|options|rc|settings)[^/]*")
_IN_ETC = re.compile(r"/etc/(?!(alternatives|ca-certificates|ssl/certs)/).+")
_NOT_STEERING = re.compile(
    r"/\.cache/|(^|/)\.git(attributes|ignore|modules)$|(hist(ory)?|hsts|info|lesshst|known_hosts)$"
    r"|^/etc/((passwd|group|g?shadow|sub[ug]id)-?|ld\.so\.cache|host(s|name)|resolv\.conf|mtab"
    r"|machine-id|localtime|timezone|adjtime)$"
)
"""What programs keep for themselves, lists that every program reads, and what engines make."""
HOOKS = _CLIENT_HOOKS | _SERVER_HOOKS
"""Of git; a sample is none."""


def is_read_in_system(path: str, commands: Collection[str], *, is_new: bool) -> bool:
    """Whether one of `commands` reads it, in any directory and as any user."""
    return _reads(_SYSTEM, path, commands, is_new=is_new)


def is_read_at_home(name: str, commands: Collection[str]) -> bool:
    """Whether one of `commands` reads `name`, relative to its user's home."""
    return _reads(_HOME, name, commands, is_new=True)


def is_read_here(name: str, commands: Collection[str]) -> bool:
    """Whether one of `commands` reads `name` in the directory that it is run in."""
    return _reads(_HERE, name, commands, is_new=True)


def is_configuration(path: str, home: str) -> bool:
    """Whether programs that start may look for `path` by its name, in a home directory or `/etc`.

    A configuration of git is graded by what it says.
    """
    if _NOT_STEERING.search(path) or _GIT_FILE.search(path):
        return False
    found = re.match(rf"(/root|/home/[^/]+|{re.escape(home)})/", path)
    at_home = found is not None and _AT_HOME.fullmatch(path[found.end() :]) is not None
    return at_home or _IN_ETC.fullmatch(path) is not None


def is_git_hook_of(name: str, commands: Collection[str]) -> bool:
    """Whether `commands` may run it by git. A file that they name is expected, so not that."""
    return "git" in commands and name in _CLIENT_HOOKS and name not in commands


def git_content_check(path: str, known: Mapping[str, str]) -> Callable[[bytes], bool] | None:
    """Return the purpose for which git may read `path`, a change; `None` if git runs nothing by it.

    A repository is any directory with a `HEAD`, to which a file called `.git` leads, too.
    """
    directory, name = posixpath.split(path)
    if name == "commondir":
        return _leads_elsewhere
    own = name == "config" and (known[path] == "changed" or f"{directory}/HEAD" in known)
    return runs_git_program if own or _GIT_FILE.search(path) else None


def _leads_elsewhere(text: bytes) -> bool:
    """Whether a repository has its configuration where no worktree has it."""
    return text.strip() != b"../.."


def runs_git_program(text: bytes) -> bool:
    """Whether a configuration of git names a program that git starts, or redirects a URL."""
    if _GIT_LEADS.search(text):
        return True
    return any(not _HARMLESS.match(found["value"] or b"") for found in _GIT_RUNS.finditer(text))


def configures_pytest(text: bytes) -> bool:
    """Whether a `pyproject.toml` has a section of pytest's."""
    return re.search(rb"\[\s*tool\s*\.\s*[\"']?pytest", text) is not None


def _reads(table: tuple[_Read, ...], path: str, commands: Collection[str], *, is_new: bool) -> bool:
    return any(
        (not each.commands or any(name in commands for name in each.commands))
        and (each.also_new or not is_new)
        and each.where.search(path) is not None
        for each in table
    )
