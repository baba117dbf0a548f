"""The variables and the shell of a stage at one instruction."""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from benchflow_contracts.errors import TaskError

from .dockerfile import Instruction
from .words import Words

SHELL = ("/bin/sh", "-c")
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_PLATFORM = {
    **{f"{kind}PLATFORM": f"linux/{ARCHITECTURE}" for kind in ("TARGET", "BUILD")},
    **{f"{kind}OS": "linux" for kind in ("TARGET", "BUILD")},
    **{f"{kind}ARCH": ARCHITECTURE for kind in ("TARGET", "BUILD")},
}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""BuildKit's default for an image without it."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(slots=True)
class Scope:
    """The effect of ENV, ARG and SHELL so far."""

    escape: str
    given: Mapping[str, str]
    """Values of the arguments before the first FROM."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    args: dict[str, str] = field(default_factory=dict[str, str])
    shell: tuple[str, ...] = SHELL
    asked: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values given to the build: each one replaces the default of its ARG."""

    @classmethod
    def before(cls, escape: str, asked: Mapping[str, str]) -> "Scope":
        """Return the scope before the first FROM."""
        platform = {name: asked.get(name, value) for name, value in _PLATFORM.items()}
        return cls(escape, {}, args=platform, asked=asked)

    def stage(self, env: Mapping[str, str], shell: tuple[str, ...] = ()) -> "Scope":
        """Return the scope of a new stage on an image with this configuration."""
        env = {"PATH": _PATH, **env}
        return Scope(self.escape, self.args, env, {}, shell or SHELL, self.asked)

    def child(self) -> "Scope":
        """Return the scope of a stage on this one: with its arguments, but ENV precedes them."""
        args = {name: value for name, value in self.args.items() if name not in self.env}
        return replace(self, env=dict(self.env), args=args)

    @property
    def variables(self) -> dict[str, str]:
        """The variables of RUN and of `$NAME`: the last ENV or ARG of each name."""
        return {**self.env, **self.args}

    def words(self, where: str) -> Words:
        """Return a reader of an instruction's words."""
        return Words(self.variables, where, self.escape)

    def take(self, one: Instruction, where: str) -> None:
        """Apply an instruction. Instructions other than ENV, ARG and SHELL change nothing.

        Raises:
            TaskError: The instruction is malformed.
        """
        if one.name == "ENV":
            said = self.words(where).pairs(one.text)
            self.env.update(said)
            for name in said:
                self.args.pop(name, None)
        elif one.name == "ARG":
            self._declare(one, where)
        elif one.name == "SHELL":
            if not one.array:
                raise TaskError("SHELL needs a JSON array", where=where)
            self.shell = one.array

    def _declare(self, one: Instruction, where: str) -> None:
        """Apply an ARG: the given value, its own default, or the value before FROM."""
        for word in self.words(where).split(one.text):
            name, equals, value = word.partition("=")
            if not _NAME.fullmatch(name):
                raise TaskError(f"{name[:80]!r} is not a name of an argument", where=where)
            if name in self.asked:
                self.args[name] = self.asked[name]
            elif equals:
                self.args[name] = value
            elif name in self.given:
                self.args[name] = self.given[name]
