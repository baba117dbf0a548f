"""The results of a probe."""

from collections.abc import Mapping
from typing import get_args

from pydantic import BaseModel, ConfigDict

from .declaration import Failure, Proof, ProvenFidelity

_FIDELITIES: tuple[ProvenFidelity, ...] = get_args(ProvenFidelity)
FACTS = ("start", "write", "load_after_kill", "ask", *get_args(ProvenFidelity))


class ProbeReport(BaseModel):
    """The results of one agent on one machine.

    Each result is `ok`, or the reason for a failure. A fact that was not tried is absent.
    """

    model_config = ConfigDict(frozen=True)

    agent: str
    version: str
    date: str
    """The day of the probe, as YYYY-MM-DD in UTC."""
    results: Mapping[str, str]
    """By fact: `start`, `write`, `load_after_kill`, `ask`, and the fidelities of a fork."""
    timings_sec: Mapping[str, float]
    commands: Mapping[str, str] = {}
    """The commands behind the results; `bench agent probe` if absent."""

    @property
    def ok(self) -> bool:
        """Whether the agent finished a turn that wrote a file."""
        return self.results.get("write") == "ok"

    def proven(self) -> Mapping[ProvenFidelity, Proof]:
        """Return the new entries of `[proven]`."""
        return {
            fidelity: Proof(version=self.version, date=self.date, command=self._command(fidelity))
            for fidelity in _FIDELITIES
            if self.results.get(fidelity) == "ok"
        }

    def unproven(self) -> Mapping[ProvenFidelity, Failure]:
        """Return the new entries of `[unproven]`."""
        return {
            fidelity: Failure(
                version=self.version,
                date=self.date,
                command=self._command(fidelity),
                reason=_one_line(self.results[fidelity]),
            )
            for fidelity in _FIDELITIES
            if self.results.get(fidelity, "ok") != "ok"
        }

    def _command(self, fidelity: ProvenFidelity) -> str:
        return self.commands.get(fidelity, f"bench agent probe {self.agent}")


def _one_line(reason: str) -> str:
    return " ".join(reason.split())[:500] or "no reason was given"
