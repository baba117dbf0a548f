"""The eval of a version is beside its production, scored by the same rewards."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from benchflow.cli import monitor as cli
from benchflow_contracts import (
    Observation,
    RolloutNode,
    RolloutRecord,
    RolloutTree,
    Step,
    ToolCall,
    Usage,
    VerifyResult,
)
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.monitor.assembler import Assembler
from benchflow_dashboard.monitor.config import (
    EvalTable,
    MonitorConfig,
    PriceTable,
    read_monitor_config,
)
from benchflow_dashboard.monitor.database import MonitorDatabase
from benchflow_dashboard.monitor.evals import EvalImporter
from benchflow_dashboard.monitor.metrics import Selection, sample
from benchflow_dashboard.monitor.reader import MonitorReader
from benchflow_dashboard.monitor.scoring import OnlineScorer
from benchflow_dashboard.monitor.views import MonitorQuery, monitor_view
from benchflow_dashboard.pages.format import metric
from litestar.testing import TestClient
from made_rollouts import write_inputs, write_rollout
from postgres_server import new_database, running_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchflow_store.database import Location

CONFIG = MonitorConfig(
    evals=(EvalTable(job="shop-eval", service="shop"),),
    prices={"m": PriceTable(input=1.0, output=1.0)},
)


def _step(name: str, *, fails: bool, model: bool = True) -> Step:
    return Step(
        id=name,
        message="look",
        tool_calls=(ToolCall(id=f"c-{name}", title="find", name="find", raw_input={"q": name}),),
        observations=(
            Observation(tool_call_id=f"c-{name}", status="failed" if fails else "completed"),
        ),
        usage=Usage(input_tokens=500_000, output_tokens=500_000) if model else None,
        started_at=10.0,
        finished_at=12.0,
    )


def _write(job: Path, name: str, variant: str, leaves: list[tuple[bool, float | None]]) -> None:
    """Write a rollout with one path for each leaf: whether its tool fails, and its reward."""
    root = RolloutNode(id="n0")
    index = {root.id: root}
    for number, (fails, reward) in enumerate(leaves, 1):
        step = _step(f"s{number}", fails=fails)
        node = RolloutNode(id=f"n{number}", parent=root, step=step)
        if reward is not None:
            node.results["reward"] = VerifyResult(reward=reward)
        root.children.append(node)
        index[node.id] = node
    tree = RolloutTree(name, "made/task", root, index, status="completed")
    directory = write_inputs(write_rollout(tree, job / name))
    record = RolloutRecord.model_validate_json((directory / "result.json").read_text())
    more = {"slot": f"{name}#0@{variant}", "attempt": 1, "model": "m"}
    (directory / "result.json").write_text(record.model_copy(update=more).model_dump_json())


@pytest.fixture(scope="module")
def postgres_server(postgres_programs: Path) -> Iterator[str]:
    """Start one server for these tests."""
    with running_postgres(postgres_programs) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """Return a new database: a file, and on a server."""
    if request.param == "sqlite":
        return tmp_path / "database.db"
    return new_database(request.getfixturevalue("postgres_server"))


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    job = tmp_path / "jobs" / "shop-eval"
    job.mkdir(parents=True)
    _write(job, "a", "1.8", [(False, 1.0)])
    _write(job, "b", "1.8", [(True, 0.0), (False, 1.0)])
    _write(job, "c", "1.9", [(True, 0.5)])
    return job.parent


def _update(location: Location, jobs: Path, config: MonitorConfig = CONFIG) -> int:
    return asyncio.run(EvalImporter(location, config, OnlineScorer(config), jobs).update())


def _eval(location: Location, metric: str, **selection: Any) -> tuple[int, float]:
    database = MonitorDatabase(location, "read")
    try:
        found = sample(database, metric, Selection(0, 1, **selection, is_eval=True))
    finally:
        database.close()
    return found.n, found.mean


def test_each_leaf_of_an_eval_is_scored_by_the_rewards_of_production(
    location: Location, jobs: Path
) -> None:
    assert _update(location, jobs) == 4

    of_version = {"service": "shop", "version": "1.8", "environment": "live"}
    assert _eval(location, "tool_error_rate", **of_version) == (3, pytest.approx(1 / 3))
    assert _eval(location, "reward:tool_errors", **of_version) == (3, pytest.approx(2 / 3))
    assert _eval(location, "reward:verdict", **of_version) == (3, pytest.approx(2 / 3))
    assert _eval(location, "latency", **of_version) == (3, pytest.approx(2.0))
    assert _eval(location, "cost", **of_version) == (3, pytest.approx(1.0))
    assert _eval(location, "rollouts", service="other")[0] == 0


def test_an_eval_is_read_again_only_if_something_changed(location: Location, jobs: Path) -> None:
    _update(location, jobs)
    assert _update(location, jobs) == 0

    _write(jobs / "shop-eval", "d", "1.9", [(False, 1.0)])
    assert _update(location, jobs) == 1
    other = CONFIG.model_copy(update={"prices": {}})
    assert _update(location, jobs, other) == 5
    assert _eval(location, "cost")[0] == 0

    one = MonitorConfig(evals=(EvalTable(job="shop-eval", variant="1.9", version="next"),))
    _update(location, jobs, one)
    assert _eval(location, "rollouts") == (2, 1.0)
    assert _eval(location, "rollouts", version="next")[0] == 2


def test_a_job_that_is_missing_or_damaged_is_left_out(
    location: Location, jobs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = (EvalTable(job="gone"), EvalTable(job="shop-eval"))
    (jobs / "shop-eval" / "c" / "events.jsonl").write_text("{")

    assert _update(location, jobs, MonitorConfig(evals=tables)) == 3

    assert "c of the eval shop-eval" in caplog.text


def _produce(location: Location, client: TestClient[Any]) -> None:
    now = time.time()
    records = []
    for number, fails in enumerate((True, True, False)):
        resource = {"service": "shop", "version": "1.8", "environment": "live"}
        shared = {"rollout": f"r{number}", "resource": resource}
        status = "failed" if fails else "completed"
        step = {
            "kind": "step",
            "index": 0,
            "ts": now,
            "started_at": now - 6,
            "tool_calls": [{"id": "c", "name": "find"}],
            "observations": [{"tool_call_id": "c", "content": "x", "status": status}],
        }
        records += [shared | step, shared | {"kind": "ended", "index": 1, "ts": now}]
    client.post("/v1/benchflow/records", content=json.dumps({"records": records}).encode())
    assembler = Assembler(location, CONFIG, OnlineScorer(CONFIG), clock=lambda: now + 40)
    asyncio.run(assembler.assemble())
    assembler.close()


def test_the_page_and_the_command_show_the_eval_beside_production(
    tmp_path: Path, location: Location, jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "monitor.toml"
    path.write_text("[[evals]]\njob = 'shop-eval'\nservice = 'shop'\n")
    settings = DashboardSettings(
        jobs_dir=jobs, index=tmp_path / "index.db", monitor=location, monitor_config=path
    )
    with TestClient(create_app(settings), base_url="http://127.0.0.1:8642") as client:
        _produce(location, client)
        # The server reads evals, too, at its start. Both store the same.
        _update(location, jobs, read_monitor_config(path))
        page = client.get("/monitor?service=shop").text

    cli.show(service="shop", database=str(location), json=True)
    shown = json.loads(capsys.readouterr().out)

    (chart,) = (one for one in shown["charts"] if one["metric"] == "tool_error_rate")
    (line,) = chart["lines"]
    assert (line["group"], line["whole"]["n"], line["eval"]["whole"]["n"]) == ("1.8", 3, 3)
    assert line["whole"]["mean"] == pytest.approx(2 / 3)
    assert line["eval"]["whole"]["mean"] == pytest.approx(1 / 3)
    assert (line["eval"]["p25"], line["eval"]["p75"]) == (0.0, 1.0)
    assert line["eval"]["top"] < line["eval"]["middle"] < line["eval"]["bottom"]
    rewards = {row["source"]: row for row in shown["rewards"]}
    assert rewards["tool_errors"]["evals"]["1.8"]["mean"] == pytest.approx(2 / 3)
    assert rewards["verdict"]["cells"]["1.8"]["n"] == 0
    # The page has each mean and n of an eval that the command prints, and no other.
    printed = re.findall(r"eval ([^<>,]+) n (\d+)", page)
    lines = [(one, each) for one in shown["charts"] for each in one["lines"] if each["eval"]]
    wholes = [(one["metric"], each["eval"]["whole"]) for one, each in lines]
    means = [(metric(whole["mean"], name), whole) for name, whole in wholes]
    means += [(f"{e['mean']:.2f}", e) for row in shown["rewards"] for e in row["evals"].values()]
    assert printed == [(text, str(whole["n"])) for text, whole in means]
    assert page.count('class="band"') == len(lines)

    cli.show(service="shop", database=str(location))
    table = capsys.readouterr().out
    assert re.search(r"tool errors +1\.8 +0\.667 +3 +0\.333 +3", table)
    assert re.search(r"output: verdict +1\.8 +- +0 +0\.667 +3", table)


def test_a_database_without_evals_is_still_shown(location: Location) -> None:
    database = MonitorDatabase(location)
    database.query("DROP TABLE monitor_evals")
    database.close()
    reader = MonitorReader(MonitorDatabase(location, "read"))

    view = monitor_view(reader, MonitorQuery(), time.time())

    reader.close()
    assert view.closed == 0
