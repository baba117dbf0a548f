"""Credentials by their shape: of model providers, code hosts, clouds, JSON web tokens and keys."""

import re
from typing import Final

from benchflow_contracts.redaction import MASK

_PRIVATE_KEY: Final = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[A-Za-z0-9+/=\\\s]|-(?!----BEGIN ))*?"
    r"-----END [A-Z ]*PRIVATE KEY-----"
)
_SHAPES: Final = (
    _PRIVATE_KEY,
    r"(earer )(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{16,}",
    r"eyJ(?:(?!eyJ)[A-Za-z0-9_-])*+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+",
    r"sk-[A-Za-z0-9_-]{16,}",
    r"gh[pousr][_-][A-Za-z0-9_-]{16,}",
    r"github_pat[_-][A-Za-z0-9_-]{16,}",
    r"glpat[_-][A-Za-z0-9_-]{16,}",
    r"xox[abprs][_-][A-Za-z0-9_-]{16,}",
    r"npm[_-][A-Za-z0-9_-]{16,}",
    r"hf[_-][A-Za-z0-9_-]{16,}",
    r"pypi[_-][A-Za-z0-9_-]{16,}",
    r"A(?:KIA|SIA)[0-9A-Z]{16}",
    r"AIza[0-9A-Za-z_-]{30,}",
)
# Each shape begins with a literal, which `re` finds 40 times as fast as the first of several
# shapes. The widest shapes come first: a web token may have `sk-` inside.
#
# Texts of agents are searched, so the time must grow with the length only: a search for the rest of
# a token or of a key ends where the next one could begin.


def _replacement(shape: str) -> str:
    # The word before a bearer token stays.
    return rf"\g<1>{MASK}" if shape.startswith("(") else MASK


_TEXTS: Final = tuple((re.compile(shape), _replacement(shape)) for shape in _SHAPES)
_DATA: Final = tuple(
    (re.compile(shape.encode()), _replacement(shape).encode()) for shape in _SHAPES
)


def mask_credentials(text: str) -> str:
    """Return `text` with `MASK` in place of credentials."""
    for shape, replacement in _TEXTS:
        text = shape.sub(replacement, text)
    return text


def mask_credential_bytes(data: bytes) -> bytes:
    """Return `data` with `MASK` in place of credentials."""
    for shape, replacement in _DATA:
        data = shape.sub(replacement, data)
    return data
