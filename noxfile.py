"""Every check of the project, as sessions: `nox -l` lists them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from interpreters import interpreters  # noqa: E402

MEMBERS = ("packages", "adapters", "apps", "benchmarks")
PACKAGES = {
    tomllib.loads(path.read_text())["project"]["name"]: str(path.parent.relative_to(ROOT))
    for place in MEMBERS
    for path in sorted(ROOT.glob(f"{place}/*/pyproject.toml"))
}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
DIST = ROOT / "dist"
REPORTS = ROOT / ".nox" / "reports"
"""What the sessions write for the summary: the times of the sessions, and those of their tests."""

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""The tests start thousands of programs: without bytecode each one compiles all that it imports."""

os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
"""A search for plugins of pydantic reads the metadata of every installed package, at each start."""

PYTEST = (
    "python",
    "-m",
    "pytest",
    "--durations=20",
    "--durations-min=2",
    *(["--reruns=1", "-rR"] if os.environ.get("CI") else []),
)
"""CI runs a failed test once more and lists it as RERUN: a defect to find, not a red main."""


def _pytest(session: nox.Session, *args: str) -> None:
    session.run(*PYTEST, f"--report-to={REPORTS}/tests/{session.name}.json", *args)


nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = True


PYTHONS = interpreters(ROOT / ".nox" / "interpreters")
OLDEST, NEWEST = PYTHONS[0], PYTHONS[-1]
BOXED = {p for p in PACKAGES if re.search("sandbox-(?!core|native)|-clouds$", p)}
"""Packages whose tests start boxes, some as other users, who can run Debian's own Python alone."""

HEAVY = {*BOXED, "benchflow-sandbox-native"}
"""Packages whose tests need more than Python."""

PROGRAMS = {f"benchflow-{name}" for name in ("clawsbench", "testing", "agent-acp", "agent-policy")}
"""Packages with programs of sandboxes, whose Python is the oldest one."""


EXTRAS = {"testing": "[pytest]", "serve": "[verifiers]", "sandbox-remote": "[aiohttp]"}
"""Packages with a module that is for users of this extra."""


def _units() -> list[str]:
    """Name the sessions that test one package each, by two Pythons at most."""
    return [
        f"unit-{python}(package={package!r})"
        for python in dict.fromkeys((OLDEST, NEWEST))
        for package in PACKAGES
        if python == OLDEST or package not in BOXED
    ]


# fmt: off
ON_DOCKER = (
    "packages/benchflow-sandbox-docker/tests",
    "adapters/benchflow-adapters-harbor/tests",
    *(f"tests/e2e/test_{name}.py" for name in (
        "built_alike", "docker_engine", "harbor_export", "heredocs", "other_engines", "old_tasks",
        "parity", "pulls", "trusted_tasks",
    )),
)

OF_GRADING = tuple(f"tests/integration/test_{name}.py" for name in (
    "cheats", "cheats_of_interpreters", "cheats_of_tasks", "directory_artifacts",
    "harbor_grading", "observed_verifier",
))
"""Slow tests of what cheating agents get."""

FOREIGN = tuple(f"tests/foreign/test_{n}.py" for n in (
    "gymnasium", "mcp_client", "openenv", "ors", "runloop_example",
))
"""Tests with the packages that install fast. They fail if a package cannot be installed."""
# fmt: on

OF_FAULTS = (
    "tests/e2e/test_fault_run.py",
    "tests/integration/test_killed_checkpoint.py",
    "packages/benchflow-sandbox-local/tests/test_gvisor.py",
)
"""Slow tests of faults and kills, and of the second engine of live snapshots."""

CI = bool(os.environ.get("CI"))
_BY_OLDEST = {*HEAVY, *PROGRAMS}
"""Packages that CI tests by the oldest Python, the others by the newest. `slow`, `docs` and `e2e`
run all packages by the oldest Python. The workflows test each package by both."""

_APART = ("benchflow-sandbox-local", "benchflow-sandbox-native", "benchflow-traces")
"""Packages with sessions of their own: one takes long, the others need more libraries."""
_LOCAL_UNITS, _NATIVE_UNITS, _TRACES_UNITS = (f"unit-{OLDEST}(package={p!r})" for p in _APART)
LANES = {
    "local": ("slow(part='local')",),
    "e2e": ("e2e",),
    "newest": (f"together-{NEWEST}",) if CI and NEWEST != OLDEST else (),
    "docker": ("slow(part='docker')",),
    "docs": ("docs",),
    "grading": ("slow(part='grading')",),
    "sandboxes": (_LOCAL_UNITS,) if CI else (),
    "units": (f"together-{OLDEST}", _NATIVE_UNITS, _TRACES_UNITS) if CI else ("unit",),
    "faults": ("slow(part='faults')",),
    "browser": ("browser",),
    "checks": ("lint", "types"),
    "wheel": ("wheel",),
    "foreign": ("foreign",),
}
"""Sessions that run one after the other. The lanes that need the most processor time are first."""

AT_ONCE = 6
"""Lanes that run at the same time: the tests of sandboxes mostly wait."""
SHOWN = "e2e"

nox.options.sessions = ["lanes"]


@nox.session(python=False)
def lanes(session: nox.Session) -> None:
    """Run every check, some lanes at once, then print a summary; arguments name some sessions.

    The output of `SHOWN` is printed while that lane runs, that of the other lanes at the end.
    """

    def run(lane: str) -> int:
        stdout = None if lane == SHOWN else logs[lane]
        return subprocess.call(_nox(lane, chosen[lane]), stdout=stdout, stderr=subprocess.STDOUT)

    shutil.rmtree(REPORTS, ignore_errors=True)
    chosen = {
        lane: [name for name in names if not session.posargs or name in session.posargs]
        for lane, names in LANES.items()
    }
    with contextlib.ExitStack() as stack:
        logs = {lane: stack.enter_context(tempfile.TemporaryFile("w+")) for lane in chosen}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            codes = dict(zip(chosen, pool.map(run, chosen), strict=True))
        for log in logs.values():
            log.seek(0)
            shutil.copyfileobj(log, sys.stdout)
            sys.stdout.flush()
    session.run(sys.executable, "tests/support/session_reports.py", str(REPORTS), external=True)
    failed = [f"{lane} ended with {code}" for lane, code in codes.items() if code]
    if failed:
        session.error("; ".join(failed))


def _nox(lane: str, sessions: list[str]) -> list[str]:
    if not sessions:
        return ["true"]
    report = REPORTS / "lanes" / f"{lane}.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    return [sys.executable, "-m", "nox", "--report", str(report), "--sessions", *sessions]


@nox.session(python=False, venv_backend="none")
def matrix(session: nox.Session) -> None:
    """Print the outputs of a workflow's job: the sessions that test packages, and the packages."""
    session.log("CI runs %d sessions of `unit`", len(_units()))
    sys.stdout.write(f"sessions={json.dumps(_units())}\npackages={json.dumps([*PACKAGES])}\n")


def _sync(session: nox.Session, *args: str) -> None:
    """Install exactly these packages of the workspace and what they declare."""
    python = f"--python=python{session.python}"
    session.run_install("uv", "sync", "--quiet", "--exact", *args, python)


def _sync_all(session: nox.Session) -> None:
    """Install all packages, into one environment for all sessions of a Python."""
    _share(session, "all")
    _sync(session, "--all-packages", "--group=docs")


def _share(session: nox.Session, name: str) -> None:
    """Run the session in an environment that other sessions of its Python use, too.

    An environment of its own compiles again whatever its tests import.
    """
    location = str(ROOT / ".nox" / f"{name}-{session.python}")
    names = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON")
    session.virtualenv.env.update(dict.fromkeys(names, location))
    session.virtualenv.location = location


@nox.session(python=PYTHONS)
@nox.parametrize("package", [*PACKAGES])
def unit(session: nox.Session, package: str) -> None:
    """Test one package alone, with only what it declares."""
    if package not in HEAVY:
        _share(session, "unit")
    _sync(session, f"--package={package}", "--no-default-groups", "--group=test")
    _pytest(session, f"{PACKAGES[package]}/tests", *session.posargs)


@nox.session(python=[*dict.fromkeys((OLDEST, NEWEST))])
def together(session: nox.Session) -> None:
    """Test in one process the packages that CI tests by this Python."""
    _sync_all(session)
    chosen = (p for p in PACKAGES if session.python == (OLDEST if p in _BY_OLDEST else NEWEST))
    homes = (f"{PACKAGES[p]}/tests" for p in chosen if p not in _APART)
    _pytest(session, *homes, *session.posargs)


@nox.session(python=PYTHONS[:1])
def quick(session: nox.Session) -> None:
    """Test what needs nothing but Python: no package that starts sandboxes or compiles."""
    _sync_all(session)
    homes = (home for package, home in PACKAGES.items() if package not in HEAVY)
    _pytest(session, *(f"{home}/tests" for home in homes), *session.posargs)


@nox.session(python=PYTHONS[:1])
@nox.parametrize("package", [*PACKAGES])
def wheel(session: nox.Session, package: str) -> None:
    """Install a built wheel into an empty environment and import all of it."""
    _build(session)
    extra = EXTRAS.get(package.removeprefix("benchflow-"), "")
    session.install("--refresh", "--find-links", str(DIST), f"{package}{extra}=={VERSION}")
    session.run("python", "-I", "-W", "error", "tests/import_all.py", package.replace("-", "_"))


def _build(session: nox.Session) -> None:
    built = {path.name.split("-")[0] for path in DIST.glob(f"*-{VERSION}-*.whl")}
    sources = (p for home in PACKAGES.values() for p in ROOT.glob(f"{home}/src/**/*"))
    # Tests and builds write bytecode and programs there.
    apart = {"__pycache__", "bin"}
    written = (p for p in sources if p.is_file() and not apart & {*p.relative_to(ROOT).parts})
    newest = max(p.stat().st_mtime for p in written)
    stale = any(path.stat().st_mtime < newest for path in DIST.glob("*.whl"))
    if stale or built != {package.replace("-", "_") for package in PACKAGES}:
        shutil.rmtree(DIST, ignore_errors=True)
        session.run_install(
            "uv", "build", "--quiet", "--all-packages", "--wheel", "-o", str(DIST), external=True
        )


@nox.session(python=False, venv_backend="none")
def release(session: nox.Session) -> None:
    """Build what a tag publishes, a directory for each package: `nox -s release -- vX.Y.Z`."""
    if session.posargs != [f"v{VERSION}"]:
        session.error(f"the tag is {session.posargs}, the packages have version {VERSION!r}")
    target = DIST / "release"
    shutil.rmtree(target, ignore_errors=True)
    session.run("uv", "build", "--quiet", "--all-packages", "-o", str(target), external=True)
    for package in PACKAGES:
        stem = f"{package.replace('-', '_')}-{VERSION}"
        built = [*target.glob(f"{stem}-*.whl"), *target.glob(f"{stem}.tar.gz")]
        if [path.suffix for path in built] != [".whl", ".gz"]:
            session.error(f"{package}: not one wheel and one sdist: {[p.name for p in built]}")
        (target / package).mkdir()
        for path in built:
            path.rename(target / package / path.name)
    if unknown := [path.name for path in target.iterdir() if path.suffix in {".whl", ".gz"}]:
        session.error(f"built for a package that is not in the workspace: {unknown}")


@nox.session(python=PYTHONS[:1])
def lint(session: nox.Session) -> None:
    """Check style, import directions and the lock file."""
    _sync_all(session)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")
    _pytest(session, "--reruns=0", "tests/architecture", *session.posargs)
    exported = session.run_install(
        "uv", "export", *LOCK_ARGS, external=True, silent=True, stderr=None
    )
    if exported != (ROOT / "requirements.lock").read_text():
        _check_pins(session, str(exported))


def _check_pins(session: nox.Session, resolved: str) -> None:
    """Require that the lock has every package, and that its versions are still a solution.

    An index shows further old versions at times, so that a fresh resolution differs.
    """
    pins = [_PIN.findall(text) for text in (resolved, (ROOT / "requirements.lock").read_text())]
    if sorted(name for name, _ in pins[0]) != sorted(name for name, _ in pins[1]):
        session.error("requirements.lock is stale: run `nox -s lock`")
    constraints = Path(session.create_tmp(), "pins.txt")
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in set(pins[1])))
    projects = (f"{home}/pyproject.toml" for home in PACKAGES.values())
    compiled = ("pip", "compile", "--quiet", "--universal", "--python-version", OLDEST)
    groups = ("--group", "pyproject.toml:dev", "--output-file", os.devnull)
    session.run_install(
        "uv", *compiled, *groups, "--constraints", str(constraints), *projects, external=True
    )


_PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^ ;]+)", re.MULTILINE)

LOCK_ARGS = (
    *("--quiet", "--all-packages", "--no-emit-workspace", "--no-header", "--no-annotate"),
    "--format=requirements-txt",
)


@nox.session(python=False)
def lock(session: nox.Session) -> None:
    """Write requirements.lock: every dependency with its hashes, and no host."""
    text = session.run("uv", "export", *LOCK_ARGS, external=True, silent=True, stderr=None)
    (ROOT / "requirements.lock").write_text(str(text))


@nox.session(python=PYTHONS[:1])
def types(session: nox.Session) -> None:
    """Check types with mypy and pyright, both strict."""
    _sync_all(session)
    session.run("mypy", *(f"{home}/src" for home in PACKAGES.values()))
    session.run("pyright", *(f"{home}/src" for home in PACKAGES.values()))


@nox.session(python=PYTHONS[:1])
def docs(session: nox.Session) -> None:
    """Build the documentation strictly and run every code block in it."""
    _sync_all(session)
    _pytest(session, "--reruns=0", "tests/docs", *session.posargs)


@nox.session(python=PYTHONS[:1])
def e2e(session: nox.Session) -> None:
    """Run the real thing: sandboxes, services, agents, attacks."""
    _sync_all(session)
    _pytest(session, "--timeout=300", *(session.posargs or ["tests/integration", "tests/e2e"]))


@nox.session(python=OLDEST)
@nox.parametrize("part", ["docker", "faults", "grading", "local"])
def slow(session: nox.Session, part: str) -> None:
    """Run what takes long: real forks, servers and kills, again and again."""
    _sync_all(session)
    # Only files that have a slow test: pytest takes 15 s to read all files.
    homes = (*(f"{home}/tests" for home in PACKAGES.values()), "tests/integration", "tests/e2e")
    files = [path for home in homes for path in sorted(Path(home).glob("**/test_*.py"))]
    apart = {*ON_DOCKER, *OF_FAULTS, *OF_GRADING}
    rest = [
        str(path)
        for path in files
        if "mark.slow" in path.read_text()
        and not any(path.is_relative_to(other) for other in apart)
    ]
    parts = {"docker": ON_DOCKER, "faults": OF_FAULTS, "grading": OF_GRADING, "local": rest}
    _pytest(session, "-m", "slow", "--timeout=600", *(session.posargs or parts[part]))


@nox.session(python=PYTHONS[:1])
def nightly(session: nox.Session) -> None:
    """Repeat what CI does a few times, and run what CI has no time for. By hand and each night."""
    _sync_all(session)
    _pytest(session, "-m", "nightly", "--reruns=0", *(session.posargs or (*MEMBERS, "tests")))


@nox.session(python=PYTHONS[:1])
def browser(session: nox.Session) -> None:
    """Open the pages of the dashboard in Debian's Chromium, beside a real server and a real run."""
    _sync_all(session)
    _pytest(session, "-m", "browser", "--timeout=300", *(session.posargs or ["tests/browser"]))


@nox.session(python=PYTHONS[:1])
def firefox(session: nox.Session) -> None:
    """Open each page of the dashboard in Debian's firefox-esr. By hand, not in CI."""
    _sync_all(session)
    session.run("python", "-m", "firefox_check", env={"PYTHONPATH": "tests/support"})


@nox.session(python=PYTHONS[:1])
def screenshots(session: nox.Session) -> None:
    """Make the pictures of the dashboard's tour anew, in both themes, into docs/assets/tour."""
    _sync_all(session)
    target = f"--pictures={ROOT}/docs/assets/tour"
    session.run("python", "-m", "pytest", "-m", "browser", "tests/browser/test_tour.py", target)


@nox.session(python=PYTHONS[:1])
def ray(session: nox.Session) -> None:
    """Run jobs on a Ray cluster of two nodes, and kill its parts. Run it alone: Ray needs CPU."""
    _sync(session, "--all-packages")
    tests = (f"{PACKAGES['benchflow-jobs-ray']}/tests", "tests/e2e/test_ray_job.py")
    limit = "--session-timeout=1200"
    _pytest(session, "-m", "ray", "--reruns=0", limit, *(session.posargs or tests))


TRAINERS = {
    "trl": (OLDEST, "trl==1.16.0", "aiohttp", "requests"),
    "verl": (OLDEST, "verl==0.9.1", "cachetools", "fastapi", "uvicorn"),
    "skyrl": (
        "3.12",
        *("skyrl==0.3.0", "skyrl-gym==0.4.0", "ray==2.56.0", "hydra-core==1.3.2", "accelerate"),
        *("aiohttp", "fastapi", "func_timeout", "jaxtyping", "loguru", "omegaconf", "polars"),
        *("tensordict", "torchdata", "tqdm", "uvicorn"),
    ),
}
"""The Python of each trainer, its package, and what it imports on the paths without a GPU."""


@nox.session
@nox.parametrize("python,trainer", [(each[0], name) for name, each in TRAINERS.items()])
def live_trainers(session: nox.Session, trainer: str) -> None:
    """Let the real trainers read what we make for them: gigabytes, so no lane has this session."""
    homes = [PACKAGES[f"benchflow-{n}"] for n in ("contracts", "kernel", "export")]
    homes.append(PACKAGES["benchflow-adapters-trainers"])
    torch = os.environ.get("BENCHFLOW_TORCH", "torch<2.15")
    tools = ("hypothesis>=6.150", "pytest>=9,<10", "pytest-rerunfailures", "pytest-timeout")
    session.install(torch, *TRAINERS[trainer][1:], *tools, *homes)
    session.env.update({"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"})
    tests = session.posargs or [f"tests/trainers/test_{trainer}.py"]
    _pytest(session, "-m", "trainers", "-W", "default", "--reruns=0", *tests)


@nox.session(python=PYTHONS[:1])
def agents(session: nox.Session) -> None:
    """Run the real agents, which are fetched by package name."""
    _sync_all(session)
    _pytest(session, "-m", "agents", "--timeout=900", *(session.posargs or ["tests/e2e"]))


@nox.session(python=PYTHONS[:1])
def trainers(session: nox.Session) -> None:
    """Judge exported trees by the packages of trainers, which are fetched by package name."""
    _sync_all(session)
    files = (f"tests/e2e/test_{name}.py" for name in ("trainer_packages", "env_client"))
    _pytest(session, "-m", "trainers", "--reruns=0", *(session.posargs or files))


@nox.session(python=PYTHONS[:1])
def foreign(session: nox.Session) -> None:
    """Run adapters with the real packages; all of them: `nox -s foreign -- tests/foreign`."""
    _sync_all(session)
    _pytest(session, "-m", "foreign", *(session.posargs or FOREIGN))


@nox.session(python=PYTHONS[:1])
def perf(session: nox.Session) -> None:
    """Measure: JSON lines, each with the machine, n, median, p95 and a bound.

    `nox -s perf -- null_engine.py --peers` runs one, with the other engines beside it.
    """
    _sync_all(session)
    name, *args = session.posargs or ["run_all.py"]
    session.run("python", f"benchmarks/perf/{name}", *args)
