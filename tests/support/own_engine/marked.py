"""Images that go when the test that made them ends."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def marked_images(api: Any) -> Iterator[str]:
    """Yield a word for `LABEL test=`. Images that have it go after."""
    mark = uuid.uuid4().hex
    yield mark
    for made in api.images(filters={"label": [f"test={mark}"]}):
        for name in set(made["RepoTags"] or ()) - {"<none>:<none>"} or {made["Id"]}:
            api.remove_image(name)
