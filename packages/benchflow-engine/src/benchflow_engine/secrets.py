"""The operator's secrets, and how records leave them out."""

import os
from collections.abc import Iterable, Iterator

from benchflow_contracts import UsageError
from benchflow_contracts.redaction import MASK

from .options import RunOptions
from .secret_redactor import LEAST_SECRET, SecretRedactor

_PUBLIC_NAMES = frozenset(
    {"HOME", "LANG", "LOGNAME", "NODE_ENV", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
)
_PUBLIC_PREFIXES = ("BENCHFLOW_", "LC_")


def secrets_of(options: RunOptions, public: Iterable[str] = ()) -> frozenset[str]:
    """Return the values that no record may have: of `--agent-env`, `--forward-env` and the key.

    Variables whose name is not that of a secret do not count. Nor does a value that is part of
    `public` or of the names of the agent, its model and its endpoint: a record needs those.
    """
    told = (options.agent_name, options.model, options.user_model, options.base_url, *public)
    known = [each for each in told if each is not None]
    return frozenset(
        value
        for value in _values(options)
        if len(value) >= LEAST_SECRET and not any(value in each for each in known)
    )


def _values(options: RunOptions) -> Iterator[str]:
    for name, value in options.agent_env.items():
        if name not in _PUBLIC_NAMES and not name.startswith(_PUBLIC_PREFIXES):
            yield value
    for name in (*options.forward_env, options.api_key_env):
        yield os.environ.get(name, "")


def recorded_options(options: RunOptions, public: Iterable[str] = ()) -> dict[str, object]:
    """Return the options for a record: names of variables, without secret values."""
    found = SecretRedactor(secrets_of(options, public))
    dumped = options.model_dump(mode="json")
    return {**dumped, "agent_env": found.value(dumped["agent_env"])}


def with_secrets(options: RunOptions) -> RunOptions:
    """Return recorded options, completed with the secrets from this process's variables.

    Raises:
        UsageError: A variable of the agent is not set here.
    """
    filled = dict(options.agent_env)
    for name, value in options.agent_env.items():
        if MASK not in value:
            continue
        if name not in os.environ:
            raise UsageError(
                f"the value of the agent's variable {name!r} is secret and was not recorded",
                hint=f"export {name}=… and try again",
            )
        filled[name] = os.environ[name]
    return options.model_copy(update={"agent_env": filled})
