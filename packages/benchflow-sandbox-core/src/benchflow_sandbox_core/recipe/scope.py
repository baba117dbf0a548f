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
    global_args: Mapping[str, str]
    """Values of the arguments before the first FROM."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    args: dict[str, str] = field(default_factory=dict[str, str])
    shell: tuple[str, ...] = SHELL
    build_args: Mapping[str, str] = field(default_factory=dict[str, str])
    """Arguments of the build. Each of them replaces the default of its ARG."""

    @classmethod
    def before(cls, escape: str, build_args: Mapping[str, str]) -> "Scope":
        """Return the scope before the first FROM."""
        platform = {name: build_args.get(name, value) for name, value in _PLATFORM.items()}
        return cls(escape, {}, args=platform, build_args=build_args)

    def stage(self, env: Mapping[str, str], shell: tuple[str, ...] = ()) -> "Scope":
        """Return the scope of a new stage on an image with this configuration."""
        env = {"PATH": _PATH, **env}
        return Scope(self.escape, self.args, env, {}, shell or SHELL, self.build_args)

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

    def apply(self, instruction: Instruction, where: str) -> None:
        """Apply an instruction. Instructions other than ENV, ARG and SHELL change nothing.

        Raises:
            TaskError: The instruction is malformed.
        """
        if instruction.name == "ENV":
            variables = self.words(where).pairs(instruction.text)
            self.env.update(variables)
            for name in variables:
                self.args.pop(name, None)
        elif instruction.name == "ARG":
            self._declare(instruction, where)
        elif instruction.name == "SHELL":
            if not instruction.array:
                raise TaskError("SHELL needs a JSON array", where=where)
            self.shell = instruction.array

    def _declare(self, instruction: Instruction, where: str) -> None:
        """Apply an ARG: the argument of the build, its own default, or the value before FROM."""
        for word in self.words(where).split(instruction.text):
            name, equals, value = word.partition("=")
            if not _NAME.fullmatch(name):
                raise TaskError(f"{name[:80]!r} is not a name of an argument", where=where)
            if name in self.build_args:
                self.args[name] = self.build_args[name]
            elif equals:
                self.args[name] = value
            elif name in self.global_args:
                self.args[name] = self.global_args[name]
