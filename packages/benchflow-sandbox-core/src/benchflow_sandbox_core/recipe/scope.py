"""The variables and the shell that hold between two instructions of a stage."""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

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
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(slots=True)
class Scope:
    """What ENV, ARG and SHELL have said so far."""

    escape: str
    given: Mapping[str, str]
    """The values of arguments from before the first FROM."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    args: dict[str, str] = field(default_factory=dict[str, str])
    shell: tuple[str, ...] = SHELL

    @classmethod
    def before(cls, escape: str) -> "Scope":
        """Return what holds before the first FROM."""
        return cls(escape, {}, args=dict(_PLATFORM))

    def stage(self, env: Mapping[str, str], shell: tuple[str, ...] = ()) -> "Scope":
        """Begin a stage, from before the first FROM, on an image that says so much of itself."""
        return Scope(self.escape, {**_PLATFORM, **self.args}, dict(env), {}, shell or SHELL)

    def child(self) -> "Scope":
        """Begin another stage on what this one is."""
        return Scope(self.escape, self.given, dict(self.env), {}, self.shell)

    @property
    def variables(self) -> dict[str, str]:
        """What RUN sees, and `$NAME` means."""
        return {**self.args, **self.env}

    def words(self, where: str) -> Words:
        """Return the reader of an instruction's words."""
        return Words(self.variables, where, self.escape)

    def take(self, one: Instruction, where: str) -> None:
        """Take in an instruction; one that says nothing of these changes nothing.

        Raises:
            TaskError: It is malformed.
        """
        if one.name == "ENV":
            self.env.update(self.words(where).pairs(one.text))
        elif one.name == "ARG":
            self._declare(one, where)
        elif one.name == "SHELL":
            if not one.array:
                raise TaskError("SHELL needs a JSON array", where=where)
            self.shell = one.array

    def _declare(self, one: Instruction, where: str) -> None:
        """Take in an ARG: its own default, or what was given under its name."""
        for word in self.words(where).split(one.text):
            name, equals, value = word.partition("=")
            if not _NAME.fullmatch(name):
                raise TaskError(f"{name[:80]!r} is no name of an argument", where=where)
            if equals:
                self.args[name] = value
            elif name in self.given:
                self.args[name] = self.given[name]
