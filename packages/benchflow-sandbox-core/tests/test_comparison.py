"""Directories that an overlay shows from elsewhere than their own path."""

import os
from contextlib import ExitStack

import pytest
from benchflow_sandbox_core.comparison import Comparison

OPAQUE = "user.overlay.opaque"


@pytest.mark.parametrize(
    ("mark", "changed"), [(OPAQUE, True), ("user.overlay.redirect", True), ("user.x", False)]
)
def test_a_directory_that_took_the_place_of_another_has_changed(tmp_path, mark, changed):
    upper, base = tmp_path / "upper", tmp_path / "base"
    for layer in (upper, base):
        (layer / "lib").mkdir(parents=True)
    os.setxattr(upper / "lib", mark, b"/elsewhere")
    with ExitStack() as stack:
        fds = [os.open(each, os.O_RDONLY | os.O_DIRECTORY) for each in (upper, base)]
        for fd in fds:
            stack.callback(os.close, fd)
        found = Comparison(fds[:1], fds[1:], OPAQUE).since({})
    assert found.changed == (("/lib",) if changed else ())
