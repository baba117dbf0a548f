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


_TEXTS: Final = tuple((start, re.compile(shape), _replacement(shape)) for start, shape in _SHAPES)
_DATA: Final = tuple(
    (start.encode(), re.compile(shape.encode()), _replacement(shape).encode())
    for start, shape in _SHAPES
)


def mask_credentials(text: str) -> str:
    """Return `text` with `MASK` in place of credentials."""
    for start, shape, replacement in _TEXTS:
        if start in text:
            text = shape.sub(replacement, text)
    return text


def mask_credential_bytes(data: bytes) -> bytes:
    """Return `data` with `MASK` in place of credentials."""
    for start, shape, replacement in _DATA:
        if start in data:
            data = shape.sub(replacement, data)
    return data
