"""What real programs sent to a receiver, once for each program."""

import importlib.util
import os

import pytest
from emitted_traces import Emitted

_NEEDED = ("pydantic_ai", "openai", "opentelemetry.exporter.otlp.proto.http")


@pytest.fixture(scope="session")
def emitted() -> Emitted:
    """Run real programs. They are in the group `test` of this package."""
    missing = [name for name in _NEEDED if not _exists(name)]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"needs {', '.join(missing)}: sync the group `test` of benchflow-traces")
    assert not missing, f"CI needs {missing}"
    return Emitted()


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
