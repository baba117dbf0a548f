"""Credentials by their shape: of model providers, code hosts, clouds, JSON web tokens and keys."""

import re
from typing import Final

from benchflow_contracts.redaction import MASK

_PRIVATE_KEY: Final = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[A-Za-z0-9+/=\\\s]|-(?!----BEGIN ))*?"
    r"-----END [A-Z ]*PRIVATE KEY-----"
)
_SHAPES: Final = (
    ("-----BEGIN ", _PRIVATE_KEY),
    ("earer ", r"(earer )(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{16,}"),
    ("eyJ", r"eyJ(?:(?!eyJ)[A-Za-z0-9_-])*+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+"),
    ("sk-", r"sk-[A-Za-z0-9_-]{16,}"),
    ("gh", r"gh[pousr][_-][A-Za-z0-9_-]{16,}"),
    ("github_pat", r"github_pat[_-][A-Za-z0-9_-]{16,}"),
    ("glpat", r"glpat[_-][A-Za-z0-9_-]{16,}"),
    ("xox", r"xox[abprs][_-][A-Za-z0-9_-]{16,}"),
    ("npm", r"npm[_-][A-Za-z0-9_-]{16,}"),
    ("hf", r"hf[_-][A-Za-z0-9_-]{16,}"),
    ("pypi", r"pypi[_-][A-Za-z0-9_-]{16,}"),
    ("AKIA", r"AKIA[0-9A-Z]{16}"),
    ("ASIA", r"ASIA[0-9A-Z]{16}"),
    ("AIza", r"AIza[0-9A-Za-z_-]{30,}"),
)
"""The literal that each shape begins with, and the shape."""
# `in` finds the literal of a shape ten times as fast as `re`, and most texts have none of them. The
# widest shapes come first: a web token may have `sk-` inside.
#
# Texts of agents are searched, so the time must grow with the length only: a search for the rest of
# a token or of a key ends where the next one could begin.


def _replacement(shape: str) -> str:
    # The word before a bearer token stays.
    return rf"\g<1>{MASK}" if shape.startswith("(") else MASK


def _rare(start: str) -> str:
    """Return a rare letter of a literal, else the literal: one letter is found much faster."""
    return next((letter for letter in start if letter in "BJKSxz"), start)


_TEXTS: Final = tuple(
    (_rare(start), start, re.compile(shape), _replacement(shape)) for start, shape in _SHAPES
)
_DATA: Final = tuple(
    (rare.encode(), start.encode(), re.compile(shape.pattern.encode()), replacement.encode())
    for rare, start, shape, replacement in _TEXTS
)


def mask_credentials(text: str) -> str:
    """Return `text` with `MASK` in place of credentials."""
    for rare, start, shape, replacement in _TEXTS:
        if rare in text and start in text:
            text = shape.sub(replacement, text)
    return text


def mask_credential_bytes(data: bytes) -> bytes:
    """Return `data` with `MASK` in place of credentials."""
    for rare, start, shape, replacement in _DATA:
        if rare in data and start in data:
            data = shape.sub(replacement, data)
    return data
