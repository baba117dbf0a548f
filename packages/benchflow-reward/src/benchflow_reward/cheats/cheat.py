"""A Cheat: what an agent may do to get a reward that it did not earn."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Cheat:
    """One script, run by `sh` as the agent in its working directory. Whether it works is open."""

    name: str
    attempt: str
    stopped: str
    """What of the design stops it, where something does."""
    script: str


@cache
def cheats() -> tuple[Cheat, ...]:
    """Return the cheats that are shipped, by name."""
    found = files("benchflow_reward.cheats").joinpath("scripts").iterdir()
    texts = {each.name.removesuffix(".sh"): each.read_text("utf-8") for each in found}
    return tuple(_read(name, texts[name]) for name in sorted(texts))


def _read(name: str, script: str) -> Cheat:
    attempt, stopped = script.splitlines()[:2]
    return Cheat(
        name, attempt.removeprefix("# attempt: "), stopped.removeprefix("# stopped: "), script
    )
