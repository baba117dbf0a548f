"""Forms of the dashboard, as a browser sends them."""

import re
from typing import Any


def csrf_of(client: Any) -> str:
    """Return the token in the forms of a page."""
    match = re.search(r'name="csrf" value="([^"]+)"', client.get("/help").text)
    assert match is not None
    return match[1]
