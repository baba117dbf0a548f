"""Find gems of the agent that Ruby prefers to the image's, because they are newer."""

import re
from collections.abc import Callable, Iterable
from functools import partial

_SPECIFICATION = re.compile(r"/specifications/(?:default/)?(.+?)-\d[^/]*\.gemspec$")
_STUB = re.compile(rb"(?m)^# stub: (\S+) ")


def gem_names(paths: Iterable[str]) -> frozenset[str]:
    """Return the names of the gems whose specifications are among `paths`."""
    return frozenset(found[1] for path in paths if (found := _SPECIFICATION.search(path)))


def shadows_gem(path: str, names: frozenset[str]) -> bool:
    """Whether `path`, a new file, is the specification of a gem by one of `names`."""
    found = _SPECIFICATION.search(path)
    return found is not None and found[1] in names


def gem_claim_check(path: str, names: frozenset[str]) -> Callable[[bytes], bool] | None:
    """Return the text that makes a new specification one of `names`; `None` for others.

    Ruby looks for `NAME-*.gemspec`, and believes the `stub` in it; without one it runs the file.
    """
    found = _SPECIFICATION.search(path)
    if found is None or not any(found[1].startswith(f"{name}-") for name in names):
        return None
    return partial(_claims_another, found[1].encode())


def _claims_another(name: bytes, text: bytes) -> bool:
    return _STUB.findall(text) != [name]
