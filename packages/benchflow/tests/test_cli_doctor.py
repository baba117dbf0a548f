"""`bench doctor`: findings with remedies, and a failure where nothing can be graded."""

import json
from pathlib import Path

import pytest
from benchflow.cli import doctor
from benchflow.cli.entry import run

PROVIDER = """
from benchflow_contracts import BaseProvider, SandboxCapabilities, SandboxError


class Small(BaseProvider):
    name = "small"
    can = {"freeze": "none"}

    def __init__(self, *, allow_unisolated=False):
        super().__init__()

    async def capabilities(self):
        notes = {"live": "install an engine", "network": "load a module"}
        return SandboxCapabilities(isolation="container", notes=notes, **self.can)

    async def create(self, spec, **_):
        raise NotImplementedError


class Grading(Small):
    name = "grading"
    can = {"kill_all": True}


class Cloud(Grading):
    name = "cloud"
    static_capabilities = SandboxCapabilities(
        isolation="vm", kill_all=True, notes={"services": "use another provider"}
    )

    async def capabilities(self):
        return self.static_capabilities


class Absent(Small):
    name = "absent"

    async def capabilities(self):
        raise SandboxError("no engine answers", hint="start the engine")


class Torn(Small):
    name = "torn"
    can = {
        "freeze": "guest",
        "snapshot_levels": {"filesystem"},
        "snapshot_consistency": "crash_consistent",
    }
"""


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "small_provider.py").write_text(PROVIDER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "small_provider"


def install(directory: Path, monkeypatch: pytest.MonkeyPatch, **providers: str) -> None:
    """Register classes of the fixture's module as sandbox providers, by entry points."""
    info = directory / "small_provider-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: small-provider\nVersion: 1\n")
    lines = [f"{name} = small_provider:{attribute}" for name, attribute in providers.items()]
    (info / "entry_points.txt").write_text("\n".join(["[benchflow.sandboxes]", *lines]))
    monkeypatch.setenv("BENCHFLOW_PLUGINS", "small-provider")


def findings(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    return {each["check"]: each for each in json.loads(capsys.readouterr().out)}


def test_a_missing_engine_is_a_warning_when_another_provider_can_grade(
    provider: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(tmp_path, monkeypatch, absent="Absent", grading="Grading")
    assert run(["doctor", "--json"]) == 0
    found = findings(capsys)
    assert found["sandbox absent"] == {
        "check": "sandbox absent",
        "status": "warn",
        "detail": "no engine answers",
        "remedies": ["start the engine"],
    }
    assert "freeze" in str(found["sandbox grading"]["detail"])


def test_a_missing_engine_is_a_failure_when_no_provider_can_grade(
    provider: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(tmp_path, monkeypatch, absent="Absent", small="Small")
    assert run(["doctor", "--json"]) == 1
    found = findings(capsys)
    assert found["sandbox absent"]["status"] == found["sandbox small"]["status"] == "fail"


def test_a_named_provider_is_the_only_one_that_is_checked(
    provider: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(tmp_path, monkeypatch, absent="Absent", grading="Grading")
    assert run(["doctor", "--sandbox", "absent", "--json"]) == 1
    found = findings(capsys)
    assert found["sandbox absent"]["status"] == "fail"
    assert "sandbox grading" not in found


def test_a_provider_that_cannot_grade_fails_the_check(
    provider: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--sandbox-import-path", f"{provider}:Small"]) == 1
    lines = capsys.readouterr().out.splitlines()
    [at] = [number for number, line in enumerate(lines) if line.startswith("fail")]
    assert "nothing can be graded" in lines[at]
    assert lines[at + 1 : at + 3] == [
        "      remedy: live: install an engine",
        "      remedy: network: load a module",
    ]


def test_a_provider_that_can_grade_passes_with_its_notes_as_remedies(
    provider: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--sandbox-import-path", f"{provider}:Grading", "--json"]) == 0
    finding = findings(capsys)["sandbox small_provider:Grading"]
    assert finding["status"] == "warn"
    assert finding["remedies"] == ["live: install an engine", "network: load a module"]


def test_what_a_provider_has_on_no_machine_is_not_a_warning(
    provider: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--sandbox-import-path", f"{provider}:Cloud", "--json"]) == 0
    finding = findings(capsys)["sandbox small_provider:Cloud"]
    assert finding["status"] == "ok"
    assert finding["remedies"] == ["services: use another provider"]


@pytest.mark.parametrize("name", ["not-a-device", "missing"])
def test_a_machine_without_virtualization_names_the_sandbox_that_has_it(
    provider: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    (tmp_path / "not-a-device").touch()
    monkeypatch.setattr(doctor, "_KVM", str(tmp_path / name))
    assert run(["doctor", "--sandbox-import-path", f"{provider}:Cloud", "--json"]) == 0
    finding = findings(capsys)["virtual machines"]
    assert finding["status"] == "warn"
    assert "--sandbox e2b" in str(finding["remedies"])


def test_the_levels_of_freeze_and_snapshots_are_shown(
    provider: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--sandbox-import-path", f"{provider}:Torn"]) == 0
    [line] = [each for each in capsys.readouterr().out.splitlines() if "isolation" in each]
    assert "snapshots filesystem (crash_consistent)" in line
    assert "freeze guest" in line
