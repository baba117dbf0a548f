from __future__ import annotations

import sys
from types import ModuleType

import pytest

from benchflow_contracts.lazy_names import lazy_names


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package with the module `shapes`, which holds the name `Circle`."""
    module, inner = ModuleType("example_package"), ModuleType("example_package.shapes")
    module.__path__ = []
    inner.Circle = object()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, inner.__name__, inner)
    return module


def test_a_name_becomes_an_attribute_of_its_package_on_first_use(package: ModuleType) -> None:
    package.__getattr__ = lazy_names("example_package", {"Circle": "shapes"})
    assert "Circle" not in vars(package)
    found = package.Circle
    assert vars(package)["Circle"] is found


def test_an_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    package.__getattr__ = lazy_names("example_package", {"Circle": "shapes"})
    with pytest.raises(AttributeError, match="'example_package' has no attribute 'Square'"):
        _ = package.Square
