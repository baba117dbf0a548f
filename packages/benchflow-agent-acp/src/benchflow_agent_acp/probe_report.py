"""What a probe found."""

from collections.abc import Mapping
from typing import get_args

from pydantic import BaseModel, ConfigDict

from .declaration import Failure, Proof, ProvenFidelity

_FIDELITIES: tuple[ProvenFidelity, ...] = get_args(ProvenFidelity)
FACTS = ("start", "write", "load_after_kill", "ask", *get_args(ProvenFidelity))


class ProbeReport(BaseModel):
    """Facts about one agent on one machine: what its `[probe]` table may record.

    Each result is `ok`, or else the reason; a fact that was not reached is absent.
    """

    model_config = ConfigDict(frozen=True)

    agent: str
    version: str
    date: str
    """Of the probe, as YYYY-MM-DD in UTC."""
    results: Mapping[str, str]
    """By fact: `start`, `write`, `load_after_kill`, `ask`, and the fidelities of a fork."""
    timings_sec: Mapping[str, float]
    commands: Mapping[str, str] = {}
    """What has shown a fact, where it was not `bench agent probe`."""

    @property
    def ok(self) -> bool:
        """Whether the agent starts and finishes a turn that writes a file."""
        return self.results.get("write") == "ok"

    def proven(self) -> Mapping[ProvenFidelity, Proof]:
        """Return what `[proven]` may say from now on."""
        return {
            each: Proof(version=self.version, date=self.date, command=self._command(each))
            for each in _FIDELITIES
            if self.results.get(each) == "ok"
        }

    def unproven(self) -> Mapping[ProvenFidelity, Failure]:
        """Return what `[unproven]` must say from now on."""
        return {
            each: Failure(
                version=self.version,
                date=self.date,
                command=self._command(each),
                reason=_line(self.results[each]),
            )
            for each in _FIDELITIES
            if self.results.get(each, "ok") != "ok"
        }

    def _command(self, fidelity: ProvenFidelity) -> str:
        return self.commands.get(fidelity, f"bench agent probe {self.agent}")


def _line(reason: str) -> str:
    return " ".join(reason.split())[:500] or "no reason was given"
