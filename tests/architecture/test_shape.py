"""The shape of the code: sizes, names, versions."""

import ast
import re
import subprocess
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOMES = [
    path.parent
    for place in ("packages", "adapters", "apps", "benchmarks")
    for path in ROOT.glob(f"{place}/*/src")
]
SOURCES = sorted(
    {path for home in HOMES for path in home.glob("src/**/*.py")}
    | {*ROOT.glob("benchmarks/**/*.py")}
)
MEMBERS = sorted(home / "pyproject.toml" for home in HOMES)


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    assert path.read_text().count("\n") <= 500
    long = {f.name: (f.end_lineno or 0) - f.lineno + 1 for f in functions(path)}
    assert not {name: size for name, size in long.items() if size > 60}


def test_nothing_is_raised_in_an_except_of_a_group() -> None:
    # Python before 3.11.4, as Debian 12 has it, wraps the error in another group.
    handled = [
        (path, node)
        for path in SOURCES
        if "except*" in (text := path.read_text())
        for block in ast.walk(ast.parse(text))
        if isinstance(block, ast.TryStar)
        for handler in block.handlers
        for node in ast.walk(handler)
    ]
    assert handled
    assert not [f"{path}:{n.lineno}" for path, n in handled if isinstance(n, ast.Raise)]


@pytest.mark.parametrize("cloud", ["daytona", "e2b", "kubernetes", "modal"])
def test_a_package_of_one_cloud_has_only_what_that_cloud_alone_needs(cloud: str) -> None:
    home = ROOT / f"packages/benchflow-sandbox-{cloud}/src"
    assert 0 < sum(path.read_text().count("\n") for path in home.rglob("*.py")) <= 400


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    names = {"utils", "helpers", "common", "misc", "util"}
    assert not [path for path in SOURCES if path.stem in names or path.parent.name in names]


def test_packages_hold_only_re_exports_in_their_init() -> None:
    wrong = []
    for path in (path for home in HOMES for path in home.glob("src/**/__init__.py")):
        tree = ast.parse(path.read_text())
        wrong += [
            f"{path.relative_to(ROOT)}: {node.name}"
            for node in tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name != "__getattr__"
        ]
    assert not wrong


INITS = sorted(path for home in HOMES for path in home.glob("src/**/__init__.py"))


def lazy_names(path: Path) -> dict[str, str]:
    """Return the names that a package declares for type checkers alone, with their modules."""
    guards = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
    imports = [n for guard in guards for n in guard.body if isinstance(n, ast.ImportFrom)]
    return {
        alias.asname or alias.name: f"{'.' * node.level}{node.module}:{alias.name}"
        for node in imports
        for alias in node.names
    }


WITHOUT_THEIRS = ("benchflow_adapters_verifiers",)
"""Packages that need a foreign package which cannot be installed beside ours: its requirements
conflict with those of our tests. `tests/foreign` loads their names with the foreign package."""


@pytest.mark.parametrize(
    "path",
    [path for path in INITS if lazy_names(path) and path.parent.name not in WITHOUT_THEIRS],
    ids=lambda p: p.parent.name,
)
def test_a_lazy_name_of_a_package_is_what_type_checkers_see(path: Path) -> None:
    source = next(parent for parent in path.parents if parent.name == "src")
    name = ".".join(path.parent.relative_to(source).parts)
    package = import_module(name)
    for each, home in lazy_names(path).items():
        module, _, attribute = home.partition(":")
        expected = getattr(import_module(module, name), attribute)
        assert getattr(package, each) is expected, f"{name}.{each}"
        # The import of a module of the same name would hide the lazy name.
        assert not (path.parent / f"{each}.py").exists(), f"{name}.{each}"


def test_versions_move_in_lockstep() -> None:
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    minor = int(root.split(".")[1])
    for member in MEMBERS:
        project = tomllib.loads(member.read_text())["project"]
        assert project["version"] == root, member
        for dependency in project["dependencies"]:
            if dependency.startswith("benchflow"):
                pinned = dependency.endswith(f"=={root}")
                ranged = dependency.endswith(f">=0.{minor},<0.{minor + 1}")
                assert pinned or ranged, f"{member}: {dependency}"


def test_no_registry_host_is_committed() -> None:
    hosts = ["py" + "pi.org", "python" + "hosted.org", "registry.npm" + "js", "deb.debian" + ".org"]
    pattern = re.compile("|".join(map(re.escape, hosts)))
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    files = [ROOT / name for name in tracked.stdout.decode().split("\0") if name]
    assert len(files) > 500
    assert not [p for p in files if p.is_file() and pattern.search(p.read_text(errors="replace"))]


def test_every_locked_dependency_has_a_hash() -> None:
    lines = (ROOT / "requirements.lock").read_text().replace("\\\n", "").splitlines()
    pinned = [line for line in lines if "==" in line]
    assert pinned
    assert all("--hash=sha256:" in line for line in pinned)
