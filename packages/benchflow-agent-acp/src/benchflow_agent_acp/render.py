"""The template values of a declaration."""

import re
from dataclasses import asdict, dataclass

from benchflow_contracts import AgentError

_NAME = re.compile(r"\{(base_url|api_key|model|home|workdir)\}")
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+\-]*|/[A-Za-z0-9._/@+\-]*")


@dataclass(frozen=True, slots=True)
class Values:
    """The values of the template names. `None` means that the rollout does not have the value.

    Quotes, spaces and control characters are refused, so a value stays one value in TOML, JSON, a
    shell line or an environment variable.
    """

    base_url: str | None
    api_key: str
    model: str | None
    home: str
    workdir: str

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not _SAFE.fullmatch(value):
                raise AgentError(f"{value!r:.100} cannot be used as the agent's {name}")


def render(template: str, values: Values) -> str:
    """Fill in `{base_url} {api_key} {model} {home} {workdir}`; do not change other braces.

    Raises:
        AgentError: The template needs a value that the rollout does not have.
    """

    def fill(match: re.Match[str]) -> str:
        value: str | None = getattr(values, match.group(1))
        if value is None:
            raise AgentError(f"the agent needs a {match.group(1)}", hint=_REMEDY[match.group(1)])
        return value

    return _NAME.sub(fill, template)


_REMEDY = {
    "base_url": "give the rollout a model endpoint (`--model-endpoint`)",
    "model": "name a model for the role (`--model`)",
}
