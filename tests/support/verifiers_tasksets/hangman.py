# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""The taskset `textarena` of verifiers 0.4 with one of its games."""

from typing import Literal

import nltk
import verifiers.v1 as vf

# The engine downloads its corpus on import, and waits long for a server that it cannot reach.
nltk.download = lambda *names, **options: True

from verifiers.v1.tasksets.textarena import (  # noqa: E402
    TextArenaConfig,
    TextArenaEnv,
    TextArenaTask,
    TextArenaTaskset,
)


class HangmanConfig(TextArenaConfig):
    game: Literal["Hangman-v0"] = "Hangman-v0"


class HangmanTaskset(TextArenaTaskset, vf.Taskset[TextArenaTask, HangmanConfig]):
    """The tasks of Hangman."""


__all__ = ["HangmanTaskset", "TextArenaEnv"]
