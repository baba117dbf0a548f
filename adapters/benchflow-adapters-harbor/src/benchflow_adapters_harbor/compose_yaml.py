"""YAML as compose reads it: by the core schema of YAML 1.2, where `on` and `22:22` are texts."""

import re

import yaml

_FLOAT = (
    r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_KINDS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*|0[0-7_]+|0x[0-9a-fA-F_]+|0b[01_]+)", "-+0123456789"),
    ("float", _FLOAT, "-+0123456789."),
    ("null", r"~|null|Null|NULL", ["~", "n", "N"]),
    ("null", r"", [""]),
    ("merge", r"<<", "<"),
)
"""Each with a pattern of its texts, and what they may begin with."""


class ComposeLoader(yaml.SafeLoader):
    """A safe loader with no implicit types but those of the core schema, and merge keys."""


_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
for _kind, _pattern, _first in _KINDS:
    for _letter in _first:
        _tagged = (f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_pattern})\Z"))
        _resolvers.setdefault(_letter, []).append(_tagged)
ComposeLoader.yaml_implicit_resolvers = _resolvers
