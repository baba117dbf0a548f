"""`--explain`, `--print-config` and `--dry-run` look at a run and start no rollout."""

import io
import json
import re
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from benchflow.cli.entry import run
from benchflow_contracts import BaseProvider, SandboxCapabilities
from benchflow_engine.scaffold import write_task

CREATED: list[object] = []


class Unstartable(BaseProvider):
    """A provider that fails the test if it is asked for a sandbox."""

    name = "unstartable"

    def __init__(self, *, allow_unisolated: bool = False) -> None:
        super().__init__()

    async def capabilities(self) -> SandboxCapabilities:
        return SandboxCapabilities(
            isolation="container", network_modes=frozenset({"none"}), freeze="kernel", notes={}
        )

    async def create(self, spec: Any, *, image: Any = None, identity: Any = None) -> Any:
        CREATED.append(spec)
        raise AssertionError("a preview started a sandbox")


PROVIDER = ("--sandbox-import-path", f"{__name__}:Unstartable")


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    write_task(tmp_path / "task")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return "task"


@pytest.fixture(autouse=True)
def nothing_is_started(tmp_path: Path) -> Any:
    CREATED.clear()
    yield
    assert CREATED == []
    assert not (tmp_path / "jobs").exists()


def settings(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[object, str, str]]:
    shown = json.loads(capsys.readouterr().out)["settings"]
    return {
        each["setting"]: (each["value"], each["origin"]["kind"], each["origin"]["where"])
        for each in shown
    }


def test_explain_names_the_origin_of_each_value(
    task: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("job.toml").write_text("isolation = 'twin'\n")
    monkeypatch.setenv("BENCHFLOW_KEEP", "forks")
    words = ("run", task, *PROVIDER, "--offline", "--config", "job.toml", "--explain", "--json")
    assert run(words) == 0
    found = settings(capsys)
    assert found["sandbox.network"] == ("none", "flag", "--offline")
    assert found["verifier.isolation"] == ("twin", "file", "job.toml:isolation")
    assert found["keep.which"] == ("forks", "variable", "$BENCHFLOW_KEEP")
    assert found["verifier.timeout_sec"] == (60, "task", "task.toml:verifier.timeout_sec")
    assert found["deadlines.connect"] == (120, "default", "")
    assert found["role.agent.agent"] == ("oracle", "default", "")


def test_a_flag_overrides_a_variable_which_overrides_a_table_of_the_file(
    task: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("job.toml").write_text(
        '[agent]\nname = "nop"\nenv = {A = "file", B = "file"}\n'
        '[branch]\nkind = "group"\nn = 3\nbudget = {max_depth = 2}\n'
        "[deadlines]\nstart = 7\n"
    )
    monkeypatch.setenv("BENCHFLOW_AGENT", "oracle")
    monkeypatch.setenv("BENCHFLOW_BRANCH_N", "4")
    given = ("--agent-env.B", "flag", "--branch-n", "5")
    assert run(("run", task, "--config", "job.toml", *given, "--print-config")) == 0
    printed = tomllib.loads(capsys.readouterr().out)
    assert printed["agent"]["name"] == "oracle"
    assert printed["agent"]["env"] == {"A": "file", "B": "flag"}
    assert (printed["branch"]["n"], printed["branch"]["budget"]["max_depth"]) == (5, 2)
    assert printed["deadlines"]["start"] == 7
    assert run(("run", task, "--config", "job.toml", *PROVIDER, "--explain", "--json")) == 0
    found = settings(capsys)
    assert found["role.agent.agent"] == ("oracle", "variable", "$BENCHFLOW_AGENT")
    assert found["branch.n"] == (4, "variable", "$BENCHFLOW_BRANCH_N")
    assert found["branch.budget.max_depth"] == (2, "file", "job.toml:branch.budget.max_depth")
    assert found["deadlines.start"] == (7, "file", "job.toml:deadlines.start")


def test_one_file_configures_a_job_and_its_rollouts(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("job.toml").write_text(f"tasks_dir = '{task}'\nrepeats = 2\n[agent]\nname = 'nop'\n")
    assert run(("eval", "create", "--config", "job.toml", "--print-config")) == 0
    text = capsys.readouterr().out
    printed = tomllib.loads(text)
    assert (printed["repeats"], printed["agent"]["name"]) == (2, "nop")
    Path("again.toml").write_text(text)
    assert run(("eval", "create", "--config", "again.toml", "--print-config")) == 0
    assert tomllib.loads(capsys.readouterr().out) == printed


def test_the_flag_sandbox_is_the_origin_of_the_provider_alone(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(("run", task, "--sandbox", "local", "--explain", "--json")) == 0
    from_flag = [name for name, value in settings(capsys).items() if value[2] == "--sandbox"]
    assert from_flag == ["sandbox.provider"]


@pytest.mark.parametrize("in_a_file", [False, True])
def test_an_import_path_is_the_sandbox_provider(
    task: str, capsys: pytest.CaptureFixture[str], *, in_a_file: bool
) -> None:
    Path("run.toml").write_text(f"sandbox.import_path = '{PROVIDER[1]}'\n")
    flags = ("--config", "run.toml") if in_a_file else PROVIDER
    origin = ("file", "run.toml:sandbox.import_path") if in_a_file else ("flag", PROVIDER[0])
    assert run(("run", task, *flags, "--explain", "--json")) == 0
    found = settings(capsys)
    assert found["sandbox.provider"] == (PROVIDER[1], *origin)
    assert "sandbox.import_path" not in found


MANIFEST = """
[environment]
name = "a-world"
base_image = "an-image:1"
owns_lifecycle = false

[[environment.services]]
name = "mail"
command = "mail-server"
port = 9001
"""


@pytest.mark.parametrize(
    ("place", "flags", "origin"),
    [
        ("task/environment/environment.toml", (), ("task", "environment.toml of the task")),
        ("environment.toml", (), ("task", "environment.toml of its benchmark")),
        (
            "other.toml",
            ("--environment-manifest", "other.toml"),
            ("flag", "--environment-manifest"),
        ),
    ],
)
def test_explain_names_the_place_that_set_the_manifest(
    task: str,
    capsys: pytest.CaptureFixture[str],
    place: str,
    flags: tuple[str, ...],
    origin: tuple[str, str],
) -> None:
    Path(place).parent.mkdir(exist_ok=True)
    Path(place).write_text(MANIFEST)
    assert run(("run", task, *PROVIDER, *flags, "--explain", "--json")) == 0
    value, *found = settings(capsys)["environment.manifest"]
    assert Path(str(value)).resolve() == Path(place).resolve()
    assert tuple(found) == origin


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [80, 40])
def test_explain_on_a_narrow_terminal_cuts_nothing(
    task: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    words = ("run", task, *PROVIDER, "--timeout-multiplier", "2", "--explain")
    assert run((*words, "--json")) == 0
    expected = json.loads(capsys.readouterr().out)["settings"]
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    with redirect_stdout(terminal):
        assert run(words) == 0
    # A value that is wider than the terminal continues on the next line.
    shown = "".join(re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue()).split())
    for setting in expected:
        origin, value = setting["origin"], setting["value"]
        if origin["kind"] == "default" and value in (None, "", [], {}):
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        wanted = (setting["setting"], text, origin["where"])
        assert [each for each in wanted if "".join(each.split()) not in shown] == []
    assert "…" not in shown


def test_explain_is_a_table_without_json(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(("run", task, *PROVIDER, "--timeout-multiplier", "2", "--explain")) == 0
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["setting", "value", "origin"]
    origin = "task.toml:verifier.timeout_sec, times --timeout-multiplier"
    assert ["verifier.timeout_sec", "120.0", origin] in rows


@pytest.mark.parametrize("value", ["abc", "a-longer-secret"])
def test_no_preview_shows_a_secret(
    task: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("BENCHFLOW_API_KEY", "key-of-the-endpoint")
    Path("agent.env").write_text(f"TOKEN={value}\n")
    url = "http://user:password@127.0.0.1:1/v1?token=query-secret"
    given = ("--env-file", "agent.env", "--base-url", url, "--model", "m")
    assert run(("run", task, *PROVIDER, *given, "--explain")) == 0
    shown = capsys.readouterr().out
    assert "role.agent.env.TOKEN" in shown
    assert not [s for s in (value, "key-of-the", "password", "query-secret") if s in shown]
    assert run(("run", task, *given, "--print-config")) == 0
    shown = capsys.readouterr().out
    assert not [s for s in ("key-of-the", "password", "query-secret", "a-longer") if s in shown]


def test_a_printed_config_gives_the_same_run(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--branch", "group", "--branch-n", "3", "--agent-env.BENCHFLOW_ASK_MCP", "1")
    more = ("--expects-changes", '/etc/"x"', "--timeout-multiplier", "1.5", "--keep", "all")
    assert run(("run", task, *flags, *more, "--print-config")) == 0
    printed = capsys.readouterr().out
    Path("run.toml").write_text(printed)
    assert run(("run", task, "--config", "run.toml", "--print-config")) == 0
    again = capsys.readouterr().out
    values = [[line.partition("  #")[0] for line in text.splitlines()] for text in (printed, again)]
    assert values[0] == values[1]


def test_a_dry_run_lists_the_checks_that_passed(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(("run", task, *PROVIDER, "--dry-run", "--json")) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert checks == ["agent", "task", "sandbox provider", "plan", "capabilities of the provider"]


def test_an_explained_dry_run_shows_the_capabilities_of_the_provider(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(("run", task, *PROVIDER, "--dry-run", "--explain", "--json")) == 0
    found = settings(capsys)
    assert found["provider.freeze"] == ("kernel", "provider", "unstartable")


@pytest.mark.parametrize(
    ("change", "flags", "code", "message"),
    [
        ("", ("--agent", "mistral-vibe"), 2, "acts through a model"),
        ("", ("--isolation", "twin"), 4, "there is no twin"),
        ('[environment]\nnetwork = "public"\n', (), 4, "does not support network mode 'public'"),
        ('[agent]\nnetwork = "model-only"\n', (), 4, "network mode 'model-only'"),
        ('[agent]\nuser = "other"\n', (), 4, "change of user to 'other'"),
        ("", ("--branch", "group", "--branch-require", "live"), 4, "cannot take filesystem"),
        ('[environment]\nhost_env = { A = "${NO_SUCH_VARIABLE}" }\n', (), 1, "'NO_SUCH_VARIABLE'"),
        ("timeout = 1\n", (), 3, "unknown key"),
    ],
)
def test_a_dry_run_has_the_exit_code_of_the_run(
    task: str,
    capsys: pytest.CaptureFixture[str],
    change: str,
    flags: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    file = Path(task, "task.toml")
    file.write_text(f"{file.read_text()}\n{change}")
    assert run(("run", task, *PROVIDER, *flags, "--dry-run")) == code
    assert message in capsys.readouterr().err


def test_a_job_is_explained_if_it_has_one_task(
    tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_task(tmp_path / "tasks" / "one")
    write_task(tmp_path / "tasks" / "two")
    words = ("eval", "create", "--tasks-dir", "tasks", *PROVIDER, "--explain", "--json")
    assert run(words) == 2
    assert "this job has 2" in capsys.readouterr().err
    assert run((*words, "--include", "one")) == 0
    assert settings(capsys)["sandbox.network"][0] == "none"


def write_job(agents: str) -> None:
    Path("job.toml").write_text(
        f"""[dataset]
paths = ["task"]
[run.sandbox]
import_path = "{__name__}:Unstartable"
{agents}
"""
    )


def test_the_dry_run_of_a_job_lists_the_checks(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job('[run.agent]\nname = "nop"')
    assert run(("job", "run", "job.toml", "--dry-run")) == 0
    shown = capsys.readouterr().err.splitlines()
    checks = ("agent", "verifiers", "sandbox provider", "open files", "disk", "memory")
    assert shown == [f"ok      {each}" for each in checks]


def test_the_dry_run_of_a_job_on_workers_finds_their_backend(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job('[run.agent]\nname = "nop"')
    words = ("job", "run", "job.toml", "--dry-run", "--backend", "no-such")
    assert run(words) == 1
    shown = capsys.readouterr().err.splitlines()
    passed = [f"ok      {each}" for each in ("agent", "verifiers", "open files", "disk")]
    assert shown[:4] == passed
    assert shown[4].startswith("failed  backend: no benchflow.backends named 'no-such'; known: ")


def test_the_dry_run_of_a_job_lists_every_problem(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(
        """[[variants]]
id = "a"
agent = { name = "mistral-vibe" }
[[variants]]
id = "b"
agent = { name = "policy", model = "m" }
model = { base_url = "http://127.0.0.1:1/v1" }"""
    )
    assert run(("job", "run", "job.toml", "--dry-run", "--json")) == 1
    shown = json.loads(capsys.readouterr().out)
    assert [each["check"] for each in shown["errors"]] == [
        "agent of variant a",
        "model endpoint of variant b",
    ]
    assert "agent of variant b" in shown["checks"]
    assert run(("job", "run", "job.toml", "--dry-run")) == 1
    text = capsys.readouterr().err
    assert "failed  agent of variant a: agent 'mistral-vibe' acts through a model\n" in text
    assert "hint: give --base-url URL and --model NAME" in text
