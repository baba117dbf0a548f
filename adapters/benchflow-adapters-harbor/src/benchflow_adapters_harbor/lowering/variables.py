"""Variables as Harbor writes them: values, and names of the host's variables."""

import re
from collections.abc import Mapping
from typing import TypedDict

_OF_THE_HOST = re.compile(r"\$\{[^}:]+(?::-.*)?\}")


class Variables(TypedDict):
    """The two fields of each table of ours that has variables."""

    env: dict[str, str]
    host_env: dict[str, str]


def variables(written: Mapping[str, str]) -> Variables:
    """Tell literal values from `${NAME}` and `${NAME:-default}`.

    Only a value as a whole is such a name; anything else with a `$` is literal, as for
    Harbor 0.24 (`resolve_env_vars`).
    """
    of_host = {name: text for name, text in written.items() if _OF_THE_HOST.fullmatch(text)}
    literal = {name: text for name, text in written.items() if name not in of_host}
    return Variables(env=literal, host_env=of_host)
