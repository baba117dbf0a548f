"""A defect of a third party's adapter names the adapter."""

from pathlib import Path

import pytest
from benchflow_contracts import TaskError
from benchflow_engine.task_formats import adapter_for, runnable_task

MODULE = """
class Adapter:
    def __init__(self, *, options):
        pass

    def claims(self, source):
        return source.endswith("boxes")

    def list_tasks(self, source, *, dataset=None):
        return [].missing


class WithoutOptions:
    pass
"""


def _install(site: Path, name: str, attribute: str) -> None:
    (site / f"{name}_adapter.py").write_text(MODULE)
    info = site / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    point = f"{name} = {name}_adapter:{attribute}\n"
    (info / "entry_points.txt").write_text(f"[benchflow.adapters]\n{point}")


@pytest.mark.parametrize(
    ("name", "attribute", "why"),
    [("lockbox", "Adapter", "'list' object has no"), ("vault", "WithoutOptions", "argument")],
)
def test_a_defect_names_its_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, attribute: str, why: str
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    _install(site, name, attribute)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("BENCHFLOW_PLUGINS", name)
    with pytest.raises(TaskError, match=rf"the adapter '{name}' failed.*{why}"):
        runnable_task(tmp_path / "boxes")


def test_a_source_without_an_adapter_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_PLUGINS", "")
    assert adapter_for(str(tmp_path)) is None
