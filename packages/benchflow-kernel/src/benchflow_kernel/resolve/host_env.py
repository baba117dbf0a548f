"""`${NAME}` of the host: the operator's variables that a task asks for."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from benchflow_contracts import TaskError

from .settings import Origin

_REFERENCE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")


@dataclass(frozen=True, slots=True)
class HostVariables:
    """The variables of the operator that a task may have."""

    allowed: Collection[str]
    values: Mapping[str, str]
    """Values of allowed variables. A variable that is not set is missing."""

    def value(self, reference: str, where: str) -> tuple[str, Origin | None]:
        """Return the value of `${NAME}` or `${NAME:-default}`, and its origin.

        The origin is `None` for the reference's own default.

        Raises:
            TaskError: A variable without a default is not allowed, or not set.
        """
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            raise TaskError(
                f"{reference!r} does not name a variable",
                where=where,
                hint="write ${NAME} or ${NAME:-default}",
            )
        name, default = match.groups()
        if name in self.allowed and name in self.values:
            return self.values[name], Origin("variable", f"${name}")
        if default is not None:
            return str(default), None
        if name in self.allowed:
            raise TaskError(
                f"needs the variable {name!r}, which is not set",
                where=where,
                hint=f"export {name}=…",
            )
        raise TaskError(
            f"needs the operator's variable {name!r}",
            where=where,
            hint=f"--forward-env {name}, if this task may have it",
        )
