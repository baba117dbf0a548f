"""The abilities of a provider, from the results of its checks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, overload

from benchflow_contracts._model import Model

from .check import CheckResult
from .checks.compared_checks import COMPARED_CHECKS
from .checks.exec_checks import EXEC_CHECKS
from .checks.freeze_checks import FREEZE_CHECKS
from .checks.life_checks import LIFE_CHECKS
from .checks.live_checks import LIVE_CHECKS
from .checks.network_checks import NETWORK_CHECKS
from .checks.observed_checks import OBSERVED_CHECKS
from .checks.pinned_checks import PINNED_CHECKS
from .checks.recipe_checks import RECIPE_CHECKS
from .checks.rollout_checks import ROLLOUT_CHECKS
from .checks.saved_checks import SAVED_CHECKS
from .checks.service_checks import SERVICE_CHECKS
from .checks.snapshot_checks import SNAPSHOT_CHECKS
from .checks.spawn_checks import SPAWN_CHECKS
from .checks.spec_checks import SPEC_CHECKS
from .checks.switched_checks import SWITCHED_CHECKS
from .checks.transfer_checks import TRANSFER_CHECKS
from .sandbox_subject import SandboxCheck

ABILITIES: Mapping[str, Sequence[SandboxCheck]] = {
    "run commands": EXEC_CHECKS,
    "copy files": TRANSFER_CHECKS,
    "start, list and delete sandboxes": (*SPEC_CHECKS, *LIFE_CHECKS),
    "reach allowed hosts only": NETWORK_CHECKS,
    "grade": ROLLOUT_CHECKS,
    "run ACP agents": SPAWN_CHECKS,
    "pause": FREEZE_CHECKS,
    "fork files": SNAPSHOT_CHECKS,
    "fork live": LIVE_CHECKS,
    "save checkpoints": SAVED_CHECKS,
    "report changed files": COMPARED_CHECKS,
    "observe opened files": OBSERVED_CHECKS,
    "change the network": SWITCHED_CHECKS,
    "build images": RECIPE_CHECKS,
    "name images by digest": PINNED_CHECKS,
    "run services": SERVICE_CHECKS,
}
"""What people ask of a provider, and the checks that show it. Each check is in one of them.

The first check decides: when it is skipped, the provider does not have the ability.
"""


class Ability(Model):
    """An ability that a provider has, has in part, or lacks."""

    name: str
    status: Literal["yes", "in part", "no", "broken", "unchecked"]
    """`broken`: a check failed. `in part`: some checks passed, and others were skipped."""
    reasons: tuple[str, ...] = ()
    """The missing capabilities or the failures."""


class SandboxReport(Sequence[CheckResult]):
    """The results of the checks in order, and the abilities of the provider. Prints as a list."""

    def __init__(
        self, provider: str, results: Iterable[CheckResult], notes: Mapping[str, str]
    ) -> None:
        self.provider = provider
        self.results = tuple(results)
        self.notes = notes
        """The provider's remedies; see `SandboxCapabilities.notes`."""

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(result for result in self.results if result.status == "failed")

    @property
    def abilities(self) -> tuple[Ability, ...]:
        """The abilities of the provider, in the order of `ABILITIES`."""
        by_name = {result.name: result for result in self.results}
        return tuple(
            _ability(name, [by_name[check.name] for check in checks if check.name in by_name])
            for name, checks in ABILITIES.items()
        )

    def can(self, name: str) -> bool:
        """Return whether the provider has the ability `name` of `ABILITIES`, at least in part."""
        return any(a.name == name and a.status in {"yes", "in part"} for a in self.abilities)

    def __str__(self) -> str:
        lines = [f"sandbox provider {self.provider!r} can:"]
        for ability in self.abilities:
            lines.append(f"  {ability.status:>9}  {ability.name}")
            lines += [f"             - {reason}" for reason in ability.reasons]
        lines += [f"  note: {name}: {note}" for name, note in self.notes.items()]
        return "\n".join(lines)

    @overload
    def __getitem__(self, index: int) -> CheckResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CheckResult]: ...
    def __getitem__(self, index: int | slice) -> CheckResult | Sequence[CheckResult]:
        return self.results[index]

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[CheckResult]:
        return iter(self.results)


def _ability(name: str, results: Sequence[CheckResult]) -> Ability:
    failed = [f"{result.name}: {result.reason}" for result in results if result.status == "failed"]
    if failed:
        return Ability(name=name, status="broken", reasons=tuple(failed))
    if not results:
        return Ability(name=name, status="unchecked")
    missing = tuple(dict.fromkeys(r.reason for r in results if r.status == "skipped"))
    if results[0].status == "skipped":
        return Ability(name=name, status="no", reasons=missing)
    return Ability(name=name, status="in part" if missing else "yes", reasons=missing)
