"""Variables in a compose file, as https://github.com/compose-spec/compose-spec has them."""

import re
from collections.abc import Mapping, Sequence
from typing import cast

_FORM = re.compile(
    r"\$(?:(?P<escaped>\$)|(?P<plain>[A-Za-z_][A-Za-z0-9_]*)"
    r"|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:(?P<rule>:?[-+?])(?P<other>[^${}]*))?\})"
)
_LONGEST = 64 * 1024


def filled(value: object, variables: Mapping[str, str]) -> object:
    """Return `value` with `$NAME` and `${NAME}` forms of every text in it replaced.

    Variables of the operator are none of these: a name that is not known must have a default.

    Raises:
        ValueError: A name is not known, a text grows too long, or a form is none of those.
    """
    if isinstance(value, str):
        return _text(value, variables)
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {key: filled(item, variables) for key, item in table.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [filled(item, variables) for item in cast("Sequence[object]", value)]
    return value


def _text(text: str, variables: Mapping[str, str]) -> str:
    rest = _FORM.sub("", text)
    if "$" in rest:
        raise ValueError(f"{text[:80]!r} has a $ that begins no plain variable")
    found = _FORM.sub(lambda form: _value(form, variables), text)
    if len(found) > _LONGEST:
        raise ValueError(f"{text[:80]!r} grows beyond {_LONGEST} characters")
    return found


def _value(form: re.Match[str], variables: Mapping[str, str]) -> str:
    if form["escaped"]:
        return "$"
    name, rule, other = form["plain"] or form["name"], form["rule"] or "", form["other"] or ""
    value = variables.get(name)
    there = value is not None and (value != "" or not rule.startswith(":"))
    if rule.endswith("+"):
        return other if there else ""
    if there and value is not None:
        return value
    if rule.endswith("-"):
        return other
    raise ValueError(f"variable {name[:80]!r} is not set, and has no default")
