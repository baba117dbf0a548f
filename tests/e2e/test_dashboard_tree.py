"""The pages of a real rollout show what their commands print."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any

import pytest
from benchflow.cli.entry import run
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.index import Index, update_index
from benchflow_dashboard.tree.diff_page import cell_text
from benchflow_dashboard.tree.measure import number, signed
from litestar import Litestar
from litestar.testing import TestClient

Page = Callable[[str], str]
Command = Callable[..., Any]


@pytest.fixture(scope="module")
def site(
    demo: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient[Litestar]]:
    """A dashboard of the demo's directory."""
    jobs = demo["directory"].parent
    path = tmp_path_factory.mktemp("index") / "index.db"
    update_index(path, jobs)
    app = create_app(DashboardSettings(jobs_dir=jobs, index=path), index=Index(path, jobs))
    with TestClient(app, base_url="http://127.0.0.1:8642") as client:
        yield client


@pytest.fixture
def page(site: TestClient[Litestar], demo: dict[str, Any]) -> Page:
    """Get a page of the demo's rollout."""

    def get(rest: str = "") -> str:
        response = site.get(f"/r/{demo['rollout_id']}{rest}")
        assert response.status_code == 200, response.text
        return response.text

    return get


@pytest.fixture
def printed(demo: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> Command:
    """Run the command that a page names; return its JSON."""

    def call(text: str, mark: str = "data-cli") -> Any:
        found = re.search(rf"<code {mark}>(.*?)</code>", text)
        assert found is not None
        words = shlex.split(unescape(found[1]))
        assert words[0] == "bench"
        capfd.readouterr()
        assert run([*words[1:], "--json"]) == 0
        return json.loads(capfd.readouterr().out)

    return call


def facts(text: str) -> dict[str, str]:
    return dict(re.findall(r'data-fact="(\w+)">([^<]*)<', text))


def parts(text: str) -> dict[str, str]:
    found = re.findall(r'data-part-kind="(\w+)">.*?<pre[^>]*>(.*?)</pre>', text, re.DOTALL)
    return {kind: unescape(body) for kind, body in found}


def test_the_tree_has_the_nodes_levels_and_credits_that_the_command_prints(
    page: Page, printed: Command
) -> None:
    text = page("?mode=advantage")
    nodes = {node["id"]: node for node in printed(text)["nodes"]}
    drawn = dict(re.findall(r'<a id="t-(n\d+)"[^>]*? aria-level="(\d+)"', text))
    labels = dict(re.findall(r'<a id="t-(n\d+)"[^>]*>.*?<text[^>]*>([^<]*)<', text))
    depths: dict[str, int] = {}
    for name, node in nodes.items():
        depths[name] = 1 if node["parent"] is None else depths[node["parent"]] + 1
    assert {name: int(level) for name, level in drawn.items()} == depths
    steps = {name: node["credit"]["step"] for name, node in nodes.items()}
    assert len(steps) == 10
    for name, step in steps.items():
        expected = "" if step is None else signed(step)
        assert labels[name].lstrip("LSR ") == expected


def test_the_pane_of_each_node_has_the_numbers_and_the_step_that_the_command_prints(
    page: Page, printed: Command, demo: dict[str, Any]
) -> None:
    names = [node["id"] for node in printed(page())["nodes"]]
    assert len(names) == 10
    for name in names:
        text = page(f"?sel={name}&hide=&full=1")
        node = printed(text, "data-cli-node")
        shown, value, credit = facts(text), node["v"], node["credit"]
        assert node["id"] == name
        assert shown["value"] == number(value["mean"])
        assert shown["stderr"] == number(value["stderr"])
        assert shown["n"] == str(value["n"])
        for part in ("step", "process", "intra", "inter"):
            assert shown[part] == ("\N{EN DASH}" if credit[part] is None else signed(credit[part]))
        if node["step"] is not None:
            found = parts(text)
            assert json.loads(found["raw"]) == node["step"]
            assert found.get("reasoning", "") == node["step"]["reasoning"]
            outputs = [each["content"] for each in node["step"]["observations"]]
            assert [found["output"]] == outputs if outputs else "output" not in found


def test_the_question_shows_the_worth_of_each_answer(page: Page, printed: Command) -> None:
    text = page("?sel=n3")
    node = printed(text, "data-cli-node")
    assert f"<p>{node['branch']['reason']}</p>" in text
    rows = re.findall(r'<tr data-option="([\w-]+)">(.*?)</tr>', text, re.DOTALL)
    options = node["step"]["ask"]["questions"][0]["options"]
    assert [name for name, _ in rows] == [option["id"] for option in options]
    numbers = [re.findall(r'class="number">([^<]*)<', row) for _, row in rows]
    probable = [f"{100 * share:.0f} %" for share in node["branch"]["answers"].values()]
    assert probable == ["0 %", "100 %", "0 %"]
    assert [each[0] for each in numbers] == probable
    assert [each[1] for each in numbers] == [".00", "1.00", ".25"]
    assert [name for name, row in rows if "<td>best</td>" in row] == ["evt-11"]


def test_the_verdicts_are_those_of_the_leaves(page: Page, printed: Command) -> None:
    nodes = printed(page())["nodes"]
    rewards = {n["id"]: n["results"]["reward"]["reward"] for n in nodes if n["results"]}
    text = page("?sel=n0&tab=reward")
    rows = re.findall(r'data-verdict="(n\d+)">.*?class="number">([^<]*)<', text, re.DOTALL)
    assert dict(rows) == {name: number(reward) for name, reward in rewards.items()}


def test_the_difference_has_the_rows_and_the_step_that_the_command_prints(
    page: Page, printed: Command
) -> None:
    text = page("/diff?a=n7&b=n8")
    data = printed(text)
    tables = re.findall(
        r'<table class="diff" data-database="([^"]*)" data-table="([^"]*)">(.*?)</table>',
        text,
        re.DOTALL,
    )
    assert len(tables) == sum(len(diffs) for diffs in data["databases"].values()) > 0
    for database, name, body in tables:
        diff = data["databases"][database][name]
        shown = [
            (sign, [unescape(cell) for cell in re.findall(r'<td class="wide">(.*?)</td>', cells)])
            for sign, cells in re.findall(r'<tr data-sign="(.)">(.*?)</tr>', body)
        ]
        expected = [("-", [cell_text(v) for v in row]) for row in diff["removed"]]
        expected += [("+", [cell_text(v) for v in row]) for row in diff["added"]]
        assert shown == expected
        assert not diff["changed"]
    values = [data[side]["value"] for side in ("a", "b")]
    assert set(values) < {0.0, 0.25, 1.0}
    assert facts(text)["values"] == " → ".join(map(number, values))
    found = re.findall(r'data-diverges="(\w+)"', text)
    assert found == [data["a"]["diverges_at"], data["b"]["diverges_at"]]
    assert data["divergence"] == "answer"
    assert "First different step: answer, after 3 equal steps" in text
