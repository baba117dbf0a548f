"""The page of a state difference: rows, files, worth, and the first different step."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from benchflow_contracts import EnvState
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.index import Index, update_index
from benchflow_dashboard.tree.diff_page import ROWS
from litestar import Litestar
from litestar.testing import TestClient
from made_rollouts import table, write_rollout
from made_trees import tree_of_climbs
from xss_payloads import PAYLOADS, dangers, structure

Client = TestClient[Litestar]

BEFORE = EnvState(
    databases={"/data/gcal.db": {"events": table((1, "old"), (2, "gone"))}},
    files={"/data/a": "1", "/data/b": "1"},
)
AFTER = EnvState(
    databases={"/data/gcal.db": {"events": table((1, "new"), (3, None))}},
    files={"/data/a": "2", "/data/c": "1"},
)


def hostile(text: str) -> tuple[EnvState, EnvState]:
    columns = (f"{text} id", f"{text} title")
    return (
        EnvState(databases={text: {text: table((1, text), columns=columns)}}, files={text: "1"}),
        EnvState(databases={text: {text: table((2, text), columns=columns)}}),
    )


def large() -> EnvState:
    rows = [(number, "row") for number in range(ROWS + 50)]
    return EnvState(databases={"/data/gcal.db": {"events": table(*rows)}})


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One dashboard with all rollouts of this module."""
    home = tmp_path_factory.mktemp("states")
    jobs = home / "jobs"

    def write(name: str, states: dict[str, EnvState]) -> None:
        tree = replace(tree_of_climbs([0, 0, 1]), rollout_id=name)
        write_rollout(tree, jobs / name, states)

    write("one", {"n2": BEFORE, "n3": AFTER, "n0": BEFORE})
    write("two", {"n3": BEFORE})
    write("large", {"n2": EnvState(), "n3": large()})
    for number, payload in enumerate(["plain", *PAYLOADS]):
        before, after = hostile(payload.replace("\ud800", ""))
        write(f"payload-{number:02}", {"n2": before, "n3": after})
    settings = DashboardSettings(jobs_dir=jobs, index=home / "index.db")
    update_index(settings.index_path(), jobs)
    index = Index(settings.index_path(), jobs)
    with TestClient(create_app(settings, index=index), base_url="http://127.0.0.1:8642") as client:
        yield client


def page(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200, response.text
    return response.text


def rows(text: str) -> list[tuple[str, list[str]]]:
    found = re.findall(r'<tr data-sign="(.)"><td[^>]*>[^<]*</td>(.*?)</tr>', text)
    return [(sign, re.findall(r"<td[^>]*>(.*?)</td>", cells)) for sign, cells in found]


def test_rows_and_files_are_shown_with_sign_and_word(client: Client) -> None:
    text = page(client, "/r/one/diff?a=n2&b=n3")
    assert rows(text) == [
        ("-", ["2", "gone"]),
        ("+", ["3", "null"]),
        ("~", ["1", "old → new"]),
        ("-", ["/data/b"]),
        ("+", ["/data/c"]),
        ("~", ["/data/a"]),
    ]
    assert "- removed" in text
    assert "/data/gcal.db · events · 2 → 2 rows" in text


def test_the_page_says_what_the_change_was_worth_and_where_the_paths_part(client: Client) -> None:
    # n2 and n3 are children of n1 and have the rewards .50 and .75.
    text = page(client, "/r/one/diff?a=n2&b=n3")
    assert '<dd data-fact="values">.50 → .75</dd>' in text
    assert "First different step: action, after 1 equal steps" in text
    assert re.findall(r'data-diverges="(\w+)"', text) == ["n2", "n3"]


def test_a_path_that_goes_on_says_so(client: Client) -> None:
    text = page(client, "/r/one/diff?a=n0&b=n3")
    assert "First different step: end, after 0 equal steps" in text
    assert "the path ends" in text


def test_nodes_of_two_rollouts_are_compared(client: Client) -> None:
    text = page(client, "/r/two/diff?a=one:n3&b=n3")
    assert [sign for sign, _ in rows(text)] == ["-", "+", "~", "-", "+", "~"]
    assert "All 2 steps of the two paths are equal." in text
    assert "bench rollout diff one:n3 two:n3" in text


def test_equal_states_are_called_equal_and_swapping_is_a_link(client: Client) -> None:
    text = page(client, "/r/one/diff?a=n0&b=n2")
    assert "The two states are equal." in text
    assert 'href="?a=n2&amp;b=n0"' in text


def test_a_node_without_a_state_says_why_and_which_have_one(client: Client) -> None:
    text = page(client, "/r/one/diff?a=n1&b=n3")
    assert "did not record a state of node &#39;n1&#39;" in text
    assert "nodes with a state: n0, n2, n3" in text
    assert "--capture-state all" in text
    assert "has no node" in page(client, "/r/one/diff?a=nothing&b=n3")


def test_the_next_states_below_are_a_link(client: Client) -> None:
    text = page(client, "/r/one/diff?a=n0&b=n1")
    assert 'href="?a=n0&amp;b=n2">Compare the next states below: n0 → n2' in text
    assert "Compare the next states" not in page(client, "/r/one/diff?a=n1&b=n2")


def test_without_a_choice_the_first_and_the_last_state_are_compared(client: Client) -> None:
    assert "State n0 → n3" in page(client, "/r/one/diff")


def test_many_rows_are_counted(client: Client) -> None:
    text = page(client, "/r/large/diff?a=n2&b=n3")
    assert len(rows(text)) == ROWS
    assert "50 more rows" in text
    assert f'<dd data-fact="rows">{ROWS + 50}</dd>' in text


def test_an_unknown_rollout_is_not_found(client: Client) -> None:
    assert client.get("/r/one/diff?a=nobody:n1&b=n3").status_code == 404


@pytest.mark.parametrize("number", range(1, len(PAYLOADS) + 1))
def test_no_payload_changes_the_structure_of_the_page(client: Client, number: int) -> None:
    text = page(client, f"/r/payload-{number:02}/diff?a=n2&b=n3")
    assert not dangers(text)
    assert structure(text) == structure(page(client, "/r/payload-00/diff?a=n2&b=n3"))
