"""When images are fetched from a registry."""

import os
from typing import cast, get_args

from benchflow_contracts.errors import UsageError
from benchflow_contracts.image import PullPolicy

PULL = "BENCHFLOW_DOCKER_PULL"
"""The environment variable that says it, when nothing else does."""


def pull_policy(given: PullPolicy | None) -> PullPolicy:
    """Return what was given, what the environment says, or `missing`.

    Raises:
        UsageError: That is no policy.
    """
    found: str = given or os.environ.get(PULL) or "missing"
    if found not in get_args(PullPolicy):
        known = ", ".join(get_args(PullPolicy))
        raise UsageError(f"{PULL} is {found!r}: it must be one of {known}")
    return cast("PullPolicy", found)
