"""The operator's secrets, and how records leave them out."""

import os
from collections.abc import Iterable, Iterator
from typing import Any

from benchflow_contracts import UsageError
from benchflow_contracts.redaction import MASK

from .config import RunConfig
from .secret_redactor import LEAST_SECRET, SecretRedactor

_PUBLIC_NAMES = frozenset(
    {"HOME", "LANG", "LOGNAME", "NODE_ENV", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
)
_PUBLIC_PREFIXES = ("BENCHFLOW_", "LC_")


def secrets_of(config: RunConfig, public: Iterable[str] = ()) -> frozenset[str]:
    """Return the values that no record may have: of `--agent-env`, `--forward-env` and the key.

    Variables whose name is not that of a secret do not count. Nor does a value that is part of
    `public` or of the names of the agent, its model and its endpoint: a record needs those.
    """
    models = (config.agent.model, config.user.model, config.judge.model)
    needed = (config.agent.label, *models, config.model.base_url, config.judge.base_url)
    known = [each for each in (*needed, *public) if each is not None]
    return frozenset(
        value
        for value in _values(config)
        if len(value) >= LEAST_SECRET and not any(value in each for each in known)
    )


def _values(config: RunConfig) -> Iterator[str]:
    for name, value in config.agent.env.items():
        if name not in _PUBLIC_NAMES and not name.startswith(_PUBLIC_PREFIXES):
            yield value
    for name in (*config.forward_env, config.model.api_key_env, config.judge.api_key_env):
        yield os.environ.get(name, "")


def recorded_config(config: RunConfig, public: Iterable[str] = ()) -> dict[str, Any]:
    """Return the configuration for a record: names of variables, without secret values."""
    found = SecretRedactor(secrets_of(config, public))
    dumped = config.model_dump(mode="json")
    dumped["agent"]["env"] = found.value(dumped["agent"]["env"])
    return dumped


def with_secrets(config: RunConfig) -> RunConfig:
    """Return a recorded configuration, completed with the secrets from this process's variables.

    Raises:
        UsageError: A variable of the agent is not set here.
    """
    filled = dict(config.agent.env)
    for name, value in config.agent.env.items():
        if MASK not in value:
            continue
        if name not in os.environ:
            raise UsageError(
                f"the value of the agent's variable {name!r} is secret and was not recorded",
                hint=f"export {name}=… and try again",
            )
        filled[name] = os.environ[name]
    agent = config.agent.model_copy(update={"env": filled})
    return config.model_copy(update={"agent": agent})
