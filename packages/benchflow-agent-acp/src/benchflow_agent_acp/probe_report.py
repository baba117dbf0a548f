"""What a probe found."""

from collections.abc import Mapping
from typing import get_args

from pydantic import BaseModel, ConfigDict

from .declaration import Proof, ProvenFidelity

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

    @property
    def ok(self) -> bool:
        """Whether the agent starts and finishes a turn that writes a file."""
        return self.results.get("write") == "ok"

    def proven(self) -> Mapping[ProvenFidelity, Proof]:
        """Return what `[proven]` may say from now on."""
        proof = Proof(version=self.version, date=self.date)
        fidelities: tuple[ProvenFidelity, ...] = get_args(ProvenFidelity)
        return {each: proof for each in fidelities if self.results.get(each) == "ok"}
