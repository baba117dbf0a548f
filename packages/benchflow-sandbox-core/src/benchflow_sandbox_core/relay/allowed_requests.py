"""The requests that the wires of models need; the relay leads no other one out.

An upstream that answers with what it was asked, as to TRACE, would tell the inside its
credential.
"""

import re

from .head import HeadError

_NAME = r"(?!\.+(?:/|$))[A-Za-z0-9._:@-]+"
_VERSION = r"(?:/v[0-9]+[a-z0-9]*)?"
_MODELS = rf"/models(?:/{_NAME})*"
_CALLS = (
    "/chat/completions",
    "/responses",
    "/messages",
    "/messages/count_tokens",
    rf"/models(?:/{_NAME})+:(?:generateContent|streamGenerateContent|countTokens)",
)
_NEEDED = {
    "POST": re.compile(f"{_VERSION}(?:{'|'.join(_CALLS)})"),
    "GET": re.compile(f"{_VERSION}{_MODELS}"),
}
# Some agents look whether there is a server at all before they ask it.
_PROBES = {"GET", "HEAD"}
OVERRIDES = frozenset({"x-http-method", "x-http-method-override", "x-method-override"})
"""Headers, in lower case, by which some servers take a request for one of another method."""


def needs_credential(method: str, target: str) -> bool:
    """Return whether a request is a call or asks for the models; false for a bare probe.

    Raises:
        HeadError: No wire needs it.
    """
    path = target.partition("?")[0]
    if (needed := _NEEDED.get(method)) is not None and needed.fullmatch(path):
        return True
    if method in _PROBES and path == "/":
        return False
    raise HeadError(f"{method} {path} is no request of a model's wire")
