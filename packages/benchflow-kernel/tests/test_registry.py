import shutil
import sys

import pytest
from benchflow_contracts import ManifestError, UsageError
from benchflow_kernel import GROUPS, Registry, load_path
from benchflow_kernel.errors import UnknownProviderError


def publish(folder, dist, version, points, *, module=None, extras=()):
    """Lay a distribution out as an installer would."""
    info = folder / f"{dist.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    provides = "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n{provides}"
    )
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items())
        for group, named in points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for name, code in (module or {}).items():
        (folder / f"{name}.py").write_text(code)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of distributions, seen before all others."""
    folder = tmp_path / "site"
    folder.mkdir()
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setenv("BENCHFLOW_PLUGINS", "acme-sandbox,acme-broken,acme-other")
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_provider_is_found_by_name_and_imported_only_when_asked_for(site):
    publish(
        site,
        "acme-sandbox",
        "1.2",
        {"benchflow.sandboxes": {"acme": "acme_box:Box", "other": "acme_gone:Box"}},
        module={"acme_box": "class Box: pass"},
    )
    registry = Registry()
    assert registry.names("benchflow.sandboxes") == ["acme", "other"]
    assert "acme_box" not in sys.modules
    assert registry.resolve("benchflow.sandboxes", "acme").__name__ == "Box"


def test_a_miss_names_the_known_ones_and_the_likely_one(site):
    publish(
        site, "acme-sandbox", "1.2", {"benchflow.sandboxes": {"docker2": "x:X", "local2": "x:X"}}
    )
    with pytest.raises(UnknownProviderError) as caught:
        Registry().resolve("benchflow.sandboxes", "dokcer2")
    assert "docker2, local2" in str(caught.value)
    assert "did you mean 'docker2'?" in str(caught.value)


def test_a_miss_that_is_an_extra_of_the_facade_names_the_install_line(site):
    publish(site, "benchflow", "99", {}, extras=("docker", "modal"))
    with pytest.raises(UnknownProviderError) as caught:
        Registry().resolve("benchflow.sandboxes", "docker")
    assert caught.value.hint == "pip install 'benchflow[docker]'"
    with pytest.raises(UnknownProviderError) as caught:
        Registry().resolve("benchflow.sandboxes", "dokker")
    assert "pip install" not in caught.value.hint


def test_what_is_installed_or_removed_meanwhile_is_noticed(site):
    point = {"benchflow.sandboxes": {"acme": "x:X"}}
    publish(site, "acme-sandbox", "1.2", point)
    assert Registry().names("benchflow.sandboxes") == ["acme"]
    publish(site, "acme-other", "1", {"benchflow.sandboxes": {"second": "x:X"}})
    assert Registry().names("benchflow.sandboxes") == ["acme", "second"]
    shutil.rmtree(site / "acme_sandbox-1.2.dist-info")
    assert Registry().names("benchflow.sandboxes") == ["second"]


def test_an_empty_variable_disables_discovery(site, monkeypatch):
    publish(site, "acme-sandbox", "1.2", {"benchflow.agents": {"acme": "x:X"}})
    monkeypatch.setenv("BENCHFLOW_PLUGINS", "")
    assert all(Registry().names(group) == [] for group in GROUPS)
    with pytest.raises(UnknownProviderError, match="known: none"):
        Registry().resolve("benchflow.agents", "acme")


def test_without_the_variable_everything_installed_is_seen(site, monkeypatch):
    publish(site, "acme-sandbox", "1.2", {"benchflow.agents": {"acme-only": "x:X"}})
    monkeypatch.delenv("BENCHFLOW_PLUGINS")
    assert "acme-only" in Registry().names("benchflow.agents")


@pytest.mark.parametrize(
    ("value", "cause"),
    [("acme_bad:Box", "ZeroDivisionError"), ("acme_missing:Box", "ModuleNotFoundError")],
)
def test_a_broken_plugin_names_its_distribution_and_the_cause(site, value, cause):
    publish(
        site,
        "acme-broken",
        "3.1",
        {"benchflow.rewards": {"judge": value}},
        module={"acme_bad": "1 / 0"},
    )
    with pytest.raises(UsageError) as caught:
        Registry().resolve("benchflow.rewards", "judge")
    assert "acme-broken 3.1" in str(caught.value)
    assert cause in str(caught.value)


def test_one_name_from_two_distributions_is_refused(site):
    publish(site, "acme-sandbox", "1", {"benchflow.sandboxes": {"acme": "a:A"}})
    publish(site, "acme-other", "2", {"benchflow.sandboxes": {"acme": "b:B"}})
    with pytest.raises(UsageError, match="acme-other 2 and acme-sandbox 1"):
        Registry().resolve("benchflow.sandboxes", "acme")


def test_an_unknown_group_is_refused():
    with pytest.raises(UsageError, match=r"benchflow\.nope"):
        Registry().names("benchflow.nope")


def test_an_import_path_is_imported(site):
    (site / "my_agent.py").write_text("class Outer:\n    class Agent: pass\n")
    assert load_path("my_agent:Outer.Agent").__qualname__ == "Outer.Agent"


@pytest.mark.parametrize("path", ["my_agent", ":Agent", "my_agent:", "", "my_agent.Agent"])
def test_another_form_of_path_is_refused(path):
    with pytest.raises(UsageError, match="module:attr"):
        load_path(path)


@pytest.mark.parametrize("path", ["no_such_module_here:A", "json:no_such_attr", ".rel:A"])
def test_a_path_that_cannot_be_imported_names_the_cause(path):
    with pytest.raises(UsageError, match="cannot be loaded"):
        load_path(path)


def test_an_error_of_ours_passes_through_the_import(site):
    (site / "refuses.py").write_text(
        "from benchflow_contracts import ManifestError\nraise ManifestError('no')\n"
    )
    with pytest.raises(ManifestError):
        load_path("refuses:A")
