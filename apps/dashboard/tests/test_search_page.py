"""The search over steps: words, phrases, filters, places, marks, and what is refused."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from benchflow_contracts import RolloutTree, UsageError
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.index import Index, StepQuery, search_steps, update_index
from benchflow_dashboard.index.step_search import FEW_STEPS
from hypothesis import given
from hypothesis import strategies as st
from litestar import Litestar
from litestar.testing import TestClient
from made_rollouts import write_rollout
from made_trees import tree_of_all_kinds, tree_of_climbs
from xss_payloads import CANARY, PAYLOADS, MarkupReader, dangers, structure

Client = TestClient[Litestar]
LONG_PATH = 130


def tree(name: str, message: str, task: str = "made/task") -> RolloutTree:
    made = replace(tree_of_climbs([0]), rollout_id=name, task_id=task)
    step = made.index["n1"].step
    assert step is not None
    made.index["n1"].step = step.model_copy(update={"message": message})
    return made


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    home = tmp_path_factory.mktemp("site")
    jobs = home / "jobs"
    for each in (
        tree("one", "walnut walnut walnut"),
        tree("two", "a walnut in a basket", task="made/other"),
        tree("three", "the basket of hazel, not a wal\x02nut"),
    ):
        write_rollout(each, jobs / "night" / each.rollout_id)
    many = replace(tree_of_climbs([0] * LONG_PATH), rollout_id="many")
    write_rollout(many, jobs / many.rollout_id)
    for number, payload in enumerate((f"plain {CANARY}", *PAYLOADS)):
        text = f"quince {payload}".replace("\ud800", "")
        hostile = replace(tree_of_all_kinds(text), rollout_id=f"payload-{number:02}")
        write_rollout(hostile, jobs / f"job-{number:02}" / hostile.rollout_id)
    update_index(home / "index.db", jobs)
    found = Index(home / "index.db", jobs)
    yield found
    found.close()


@pytest.fixture(scope="module")
def client(index: Index) -> Iterator[Client]:
    settings = DashboardSettings(jobs_dir=index.jobs_dir, index=index.path)
    with TestClient(create_app(settings, index=index), base_url="http://127.0.0.1:8642") as client:
        yield client


def runs_of(index: Index, few: int = FEW_STEPS, **query: str) -> list[str]:
    with index.read() as session:
        return [hit.run for hit in search_steps(session, StepQuery.of(query), few=few).hits]


def test_a_step_with_the_word_more_often_comes_first(index: Index) -> None:
    assert runs_of(index, q="walnut") == ["one", "two"]
    assert runs_of(index, q="WALNUT basket") == ["two"]
    assert runs_of(index, q='"basket of hazel"') == ["three"]
    assert runs_of(index, q='"hazel basket"') == []


@pytest.mark.parametrize("few", [0, FEW_STEPS])
def test_each_filter_leaves_its_rollouts(index: Index, few: int) -> None:
    assert runs_of(index, few, q="walnut", task="made/other") == ["two"]
    assert sorted(runs_of(index, few, q="basket", job="night")) == ["three", "two"]
    assert runs_of(index, few, q="basket", job="night", task="made/other") == ["two"]
    assert runs_of(index, few, q="basket", job="day") == []
    assert runs_of(index, few, q="basket", status="failed") == []
    assert len(runs_of(index, few, q="basket", status="completed")) == 2


def test_the_pages_of_a_search_have_each_step_once_in_both_directions(client: Client) -> None:
    url, seen = "/api/v1/search?q=result&job=", []
    answers = [client.get(url).json()]
    while answers[-1]["next"]:
        answers.append(client.get(f"{url}&after={answers[-1]['next']}").json())
    pages = [[hit["node"] for hit in answer["hits"]] for answer in answers]
    seen = [(hit["run"], hit["node"]) for answer in answers for hit in answer["hits"]]
    assert len(seen) == len(set(seen)) >= LONG_PATH
    assert [len(page) for page in pages[:-1]] == [50] * (len(pages) - 1)
    assert answers[0]["previous"] is None
    back = client.get(f"{url}&before={answers[-1]['previous']}").json()
    assert [hit["node"] for hit in back["hits"]] == pages[-2]
    assert client.get(f"/search?q=result&after={answers[0]['next']}").status_code == 200


def test_a_hit_links_to_its_step_and_marks_the_words(client: Client) -> None:
    text = client.get("/search?q=basket").text
    assert text.count("<mark>basket</mark>") == 2
    assert 'href="/r/two?sel=n1"' in text
    # A mark that an agent wrote into its step is not one of the page.
    assert "wal\\x02nut" in text


def parts_of(text: str) -> list[str]:
    """Return the elements and attributes without marks: their number depends on the words."""
    return sorted(each for each in structure(text) if each != "mark")


@pytest.mark.parametrize("number", range(1, len(PAYLOADS) + 1))
def test_no_payload_leaves_its_text(client: Client, number: int) -> None:
    plain = client.get("/search?q=quince&job=job-00").text
    text = client.get(f"/search?q=quince&job=job-{number:02}").text
    assert dangers(text) == []
    assert parts_of(text) == parts_of(plain)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_the_query_itself_is_shown_as_text(client: Client, payload: str) -> None:
    query = {"q": payload, "job": payload, "task": payload, "status": payload}
    query = {name: value.replace("\ud800", "") for name, value in query.items()}
    answer = client.get("/search", params=query)
    assert answer.status_code in {200, 400}
    assert dangers(answer.text) == []
    values = [value for _, name, value in MarkupReader(answer.text).attributes if name == "value"]
    assert any(CANARY in value for value in values)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ('q="open', "a double quote is not closed"),
        ("q=%2B%2B", "no letter or digit"),
        ("q=" + "a+" * 20, "20 words; the maximum is 16"),
        ("q=" + "a" * 501, "501 characters"),
        ("q=a&after=x", "not a place of this list"),
        ("q=a&before=W10", "not a place of this list"),
        ("q=a&job=" + "j" * 501, "501 characters"),
    ],
)
def test_a_wrong_query_is_refused_on_the_page_and_by_the_api(
    client: Client, query: str, why: str
) -> None:
    answer = client.get(f"/search?{query}")
    assert answer.status_code == 400
    assert why in answer.text.replace("&#34;", '"')
    assert '<input type="search" name="q"' in answer.text
    assert client.get(f"/api/v1/search?{query}").status_code == 400


@given(st.text(max_size=60))
def test_any_text_is_searched_or_refused(index: Index, text: str) -> None:
    try:
        query = StepQuery.of({"q": text.encode("utf-8", "replace").decode()})
    except UsageError:
        return
    with index.read() as session:
        search_steps(session, query)


def test_an_empty_search_says_what_it_finds(client: Client) -> None:
    assert "A step matches if it has all words" in client.get("/search").text
    assert "No step has all words" in client.get("/search?q=nowhere").text
    text = client.get("/search?q=nowhere&job=night").text
    assert re.search(r'<a href="/search\?q=nowhere">Search all runs</a>', text)
