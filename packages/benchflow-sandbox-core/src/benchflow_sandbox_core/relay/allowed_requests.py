"""The requests of model APIs. The relay refuses all others.

An upstream that echoes a request, as for TRACE, would reveal the credential to the inside.
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
# Some agents check for a server before their first call.
_PROBES = {"GET", "HEAD"}
OVERRIDES = frozenset({"x-http-method", "x-http-method-override", "x-method-override"})
"""Headers, in lower case, that change the method of a request for some servers."""


def needs_credential(method: str, target: str) -> bool:
    """Return whether a request is a call or lists models; false for a bare probe.

    Raises:
        HeadError: Model APIs do not need the request.
    """
    path = target.partition("?")[0]
    if (needed := _NEEDED.get(method)) is not None and needed.fullmatch(path):
        return True
    if method in _PROBES and path == "/":
        return False
    raise HeadError(f"{method} {path} is not a request of a model API")
