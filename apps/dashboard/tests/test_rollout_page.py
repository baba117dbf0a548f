"""The page of a rollout: tree, pane, tabs, filters, folds and neighbours, without JavaScript."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from benchflow_contracts import BranchRecord, NodeError, RolloutTree, Usage, VerifyResult
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.index import Index, update_index
from benchflow_dashboard.tree.unseen_text import MOST
from benchflow_store import GroupRecord, GroupVerdict, LostMember, append_group
from litestar import Litestar
from litestar.testing import TestClient
from made_rollouts import write_rollout
from made_trees import random_tree, tree_of_all_kinds, tree_of_climbs
from xss_payloads import CANARY, PAYLOADS, MarkupReader, dangers, structure

Client = TestClient[Litestar]
TABS = ("steps", "reward", "evidence", "cost", "events")
HTMX = {"HX-Request": "true"}
DASH = "\N{EN DASH}"
KINDS = "/r/all-kinds"
PLAIN = "/r/plain-text"


def long_text() -> RolloutTree:
    tree = tree_of_climbs([0])
    step = tree.index["n1"].step
    assert step is not None
    tree.index["n1"].step = step.model_copy(update={"message": "x" * 20_000})
    return tree


def failed_step() -> RolloutTree:
    tree = random_tree(40)
    tree.index["n7"].error = NodeError(boundary="agent", type="AgentError", message="died")
    return tree


def with_tokens() -> RolloutTree:
    tree = tree_of_climbs([0, 1, 1, 0])
    for node in tree.nodes:
        if node.step is not None:
            usage = Usage(input_tokens=1_000, output_tokens=500)
            node.step = node.step.model_copy(update={"usage": usage})
    return tree


def running() -> RolloutTree:
    tree = tree_of_climbs([0, 0])
    tree.status = "running"
    tree.index["n2"].results.clear()
    return tree


def asked() -> RolloutTree:
    """Return a tree whose question was forked after its user was asked."""
    tree = tree_of_all_kinds()
    fork = tree.index["n1"]
    assert fork.branch is not None
    answers = {"plain a": 0.75, "plain b": 0.25}
    fork.branch = fork.branch.model_copy(update={"answers": answers})
    return tree


def answered(answers: dict[str, float] | None) -> RolloutTree:
    """Return a tree with one child for each answer: of worth 1.0, 0.2 and 0.0."""
    tree = tree_of_climbs([0, 1, 1])
    record = BranchRecord(
        policy="ask-user", fidelity="state", reason="not live", children=3, answers=answers
    )
    tree.root.branch = record
    for node, label, reward in zip(tree.root.children, "abc", (1.0, 0.2, 0.0), strict=True):
        node.label = label
        node.results["reward"] = VerifyResult(reward=reward)
    return tree


def forked_at_call() -> RolloutTree:
    """A tree whose fork is at its second model call."""
    tree = answered(None)
    fork = next(node for node in tree.nodes if node.branch)
    fork.branch = BranchRecord(policy="group", fidelity="live", reason="criu", children=3, call=2)
    return tree


TREES: dict[str, Callable[[], RolloutTree]] = {
    "all-kinds": tree_of_all_kinds,
    "plain-text": lambda: tree_of_all_kinds(f"plain {CANARY}"),
    "filtered": lambda: tree_of_all_kinds("visible"),
    "long-text": long_text,
    "failed-step": failed_step,
    "three-leaves": lambda: tree_of_climbs([0, 1, 1]),
    "long-path": lambda: tree_of_climbs([0] * 4_999),
    "with-tokens": with_tokens,
    "running": running,
    "asked": asked,
    "counterfactual": lambda: answered({"a": 0.5, "b": 0.5, "c": 0.0}),
    "assumed": lambda: answered(None),
    "never-given": lambda: answered({"a": 1.0, "b": 0.0, "c": 0.0}),
    "at-call": forked_at_call,
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One dashboard with all rollouts of this module."""
    home = tmp_path_factory.mktemp("site")
    jobs = home / "jobs"
    for name, make in TREES.items():
        write_rollout(replace(make(), rollout_id=name), jobs / name)
    for number in range(3):
        tree = replace(tree_of_climbs([0]), rollout_id=f"listed-{number}")
        write_rollout(tree, jobs / "walk" / tree.rollout_id, finished_at=1_000.0 - number)
    for number, payload in enumerate(PAYLOADS):
        # A log is UTF-8, so it has no lone surrogate.
        tree = tree_of_all_kinds(payload.replace("\ud800", ""))
        name = f"payload-{number:02}"
        write_rollout(replace(tree, rollout_id=name), jobs / "hostile" / name)
    write_rollout(replace(tree_of_climbs([0, 1]), rollout_id="ranked"), jobs / "ranks" / "ranked")
    verdict = GroupVerdict(rollout="ranked", leaf="n1", result=VerifyResult(reward=0.9))
    lost = LostMember(name="ranked", leaf="n2", reason=f"lost {PAYLOADS[0]}")
    append_group(
        jobs / "ranks",
        GroupRecord(task="t", task_digest="d", reward="rank", leaves=(verdict,), lost=(lost,)),
    )
    damaged = write_rollout(replace(tree_of_climbs([0]), rollout_id="damaged"), jobs / "damaged")
    (damaged / "events.jsonl").write_text('{"kind": "nonsense"}\n' * 3)
    settings = DashboardSettings(jobs_dir=jobs, index=home / "index.db")
    update_index(settings.index_path(), jobs)
    index = Index(settings.index_path(), jobs)
    with TestClient(create_app(settings, index=index), base_url="http://127.0.0.1:8642") as client:
        yield client


def page(client: Client, url: str, **headers: str) -> str:
    response = client.get(url, headers=headers)
    assert response.status_code == 200, response.text
    return response.text


def links(text: str) -> dict[str, str]:
    """Return the controls of a page: the URL by key."""
    pairs = re.findall(r'<a href="([^"]*)"[^>]*? data-key="([^"]*)"', text)
    return {key: url.replace("&amp;", "&") for url, key in pairs}


def parts(text: str) -> list[str]:
    return re.findall(r'data-part-kind="(\w+)"', text)


def test_the_page_shows_the_tree_and_opens_at_the_first_fork(client: Client) -> None:
    text = page(client, KINDS)
    assert text.count('role="treeitem"') == 6
    assert '<a id="t-n1" aria-selected="true"' in text
    assert 'data-node="n1"' in text
    assert "fork x3 · R (replay) · why?" in text


def test_the_page_shows_group_rewards_beside_own_rewards(client: Client) -> None:
    text = page(client, "/r/ranked")
    rows = re.findall(r'<tr data-group="rank">(.*?)</tr>', text)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    leaves = [f'<a href="?sel={leaf}">{leaf}</a>' for leaf in ("n1", "n2")]
    # A leaf that the group reward did not see has its own reward, too.
    assert [row[:4] for row in cells] == [
        [leaves[0], "rank", ".90", ".25"],
        [leaves[1], "rank", DASH, ".50"],
    ]
    assert "Group rewards: rank .90 over 1 of 2 leaves</summary>" in text
    assert PAYLOADS[0] not in text
    assert "Group rewards" not in page(client, KINDS)


def test_a_page_that_has_the_drawing_gets_neither_its_groups_nor_its_list_again(
    client: Client,
) -> None:
    url = "/r/long-path?fold=0"
    whole = page(client, url)
    name = re.search(r'data-drawing="([^"]+)"', whole)
    assert name is not None
    again = page(client, url, **{"Live-Drawing": name[1]})
    assert whole.count("data-chunk") == again.count("data-same=") > 50
    assert "data-chunk" not in again
    assert len(again) < len(whole) / 10
    other = page(client, f"{url}&mode=time", **{"Live-Drawing": name[1]})
    assert "data-same=" not in other
    assert "data-same=" not in page(client, url, **{"Live-Drawing": "unknown"})


def test_a_question_shows_each_option_with_its_worth(client: Client) -> None:
    text = page(client, f"{KINDS}?sel=n1")
    rows = re.findall(r'<tr data-option="(\w+)">(.*?)</tr>', text, re.DOTALL)
    assert [name for name, _ in rows] == ["o0", "o1"]
    assert all("not tried" in row for _, row in rows)
    # The children of this tree have other labels than the options.
    assert 'href="?sel=n2" data-part>n2</a>' in text


def test_a_question_shows_how_probable_each_answer_of_the_user_is(client: Client) -> None:
    rows = re.findall(r"<tr data-option.*?</tr>", page(client, "/r/asked?sel=n1"), re.DOTALL)
    assert ["75 %" in row for row in rows] == [True, False]
    assert ["25 %" in row for row in rows] == [False, True]
    rows = re.findall(r"<tr data-option.*?</tr>", page(client, f"{KINDS}?sel=n1"), re.DOTALL)
    assert not any("%" in row for row in rows)


@pytest.mark.parametrize(
    ("tab", "shown"),
    [
        ("steps", 'data-part-kind="action"'),
        ("reward", 'data-verdict="n5"'),
        ("evidence", "grading of reward"),
        ("cost", 'data-cost="n5"'),
        ("events", "node_scored"),
    ],
)
def test_each_tab_is_a_link_with_a_key(client: Client, tab: str, shown: str) -> None:
    text = page(client, f"{KINDS}?sel=n5&tab={tab}")
    assert f'data-key="{TABS.index(tab) + 1}" aria-current="page"' in text
    assert shown in text


def test_htmx_gets_the_pane_alone(client: Client) -> None:
    text = page(client, f"{KINDS}?sel=n2", **HTMX)
    assert text.startswith('<section class="pane" id="pane"')
    assert 'data-node="n2"' in text
    assert "<svg" not in text


def test_the_filters_hide_parts_and_say_so(client: Client) -> None:
    url = "/r/filtered?sel=n1"
    every = ["prompt", "reasoning", "message", "action", "input", "output"]
    assert parts(page(client, url)) == every
    assert parts(page(client, f"{url}&hide=")) == [*every, "raw"]
    text = page(client, f"{url}&hide=reasoning,output,raw,nonsense")
    assert parts(text) == ["prompt", "message", "action", "input"]
    assert "2 parts are hidden" in text


def test_a_long_text_is_cut_and_can_be_shown_whole(client: Client) -> None:
    text = page(client, "/r/long-text?sel=n1")
    assert "x" * 8_001 not in text
    assert "12000 more characters" in text
    assert "x" * 20_000 in page(client, "/r/long-text?sel=n1&full=1")


def test_a_failure_is_one_key_away_and_the_worst_step_a_link(client: Client) -> None:
    text = page(client, "/r/failed-step?sel=n0")
    assert links(text)["n"] == "?sel=n7"
    assert re.search(r'<a href="\?sel=n\d+" data-part>worst step -[\d.]+</a>', text)
    assert "✕ agent: died" in page(client, "/r/failed-step?sel=n7")


def test_the_worst_step_is_not_below_an_answer_that_the_user_never_gives(client: Client) -> None:
    text = page(client, "/r/counterfactual?sel=n0")
    assert re.search(r'<a href="\?sel=n2"[^>]*>worst step -.40</a>', text)


def test_a_worst_step_below_an_answer_that_is_never_given_says_so(client: Client) -> None:
    text = page(client, "/r/never-given?sel=n0")
    words = "worst step -1.00, after an answer that the user never gives"
    assert re.search(rf'<a href="\?sel=n3"[^>]*>{words}</a>', text)


def test_the_worst_step_says_that_the_user_was_not_asked(client: Client) -> None:
    text = page(client, "/r/assumed?sel=n0")
    assert re.search(r'<a href="\?sel=n3"[^>]*>worst step -.40, after an assumed answer</a>', text)


def test_a_rollout_without_failures_leads_to_its_worst_step(client: Client) -> None:
    # The leaves n1, n2 and n3 have .25, .50 and .75.
    text = page(client, "/r/three-leaves?sel=n0")
    assert links(text)["n"] == "?sel=n1"
    assert "worst step -.25" in text


def test_a_mark_leads_to_the_comparison(client: Client) -> None:
    assert links(page(client, f"{KINDS}?sel=n2"))["a"] == "?sel=n2&a=n2"
    text = page(client, f"{KINDS}?sel=n5&a=n2")
    assert links(text)["d"] == "/r/all-kinds/diff?a=n2&b=n5"
    assert ">A .50" in text


def test_a_long_path_is_folded_in_a_tree_that_is_not_small(client: Client) -> None:
    text = page(client, "/r/long-path")
    assert text.count('role="treeitem"') == 3
    assert "4998 steps, folded" in text
    # The selected node is outside of the fold, and the list of the path is bounded.
    text = page(client, "/r/long-path?sel=n2500")
    assert '<a id="t-n2500" aria-selected="true"' in text
    assert "The first 2300 steps are not listed." in text
    assert page(client, "/r/long-path?fold=0").count('role="treeitem"') == 5_000


def test_folding_and_unfolding_a_subtree_are_links(client: Client) -> None:
    folded = page(client, KINDS + links(page(client, f"{KINDS}?sel=n1"))["o"])
    assert folded.count('role="treeitem"') == 2
    assert "4 nodes below, folded" in folded
    unfolded = page(client, KINDS + links(folded)["o"])
    assert unfolded.count('role="treeitem"') == 6


@pytest.mark.parametrize(
    ("mode", "label"), [("value", ".50"), ("advantage", "+.42"), ("cost", "1.5k"), ("time", "1.5s")]
)
def test_each_mode_changes_the_number_at_the_nodes(client: Client, mode: str, label: str) -> None:
    text = page(client, f"/r/with-tokens?mode={mode}")
    assert f">{label}" in text
    name = {"value": "V"}.get(mode, mode)
    assert re.search(rf'aria-current="true">{name}</a>', text)


def test_unknown_values_of_the_url_are_the_defaults(client: Client) -> None:
    wrong = "sel=nothing&tab=evil&mode=x&fold=7&page=-1&hide=%00&open=,,&a=&list=sort%3Dno"
    assert 'data-node="n1"' in page(client, f"{KINDS}?{wrong}")


def test_the_brackets_walk_the_list_and_keep_the_mark(client: Client) -> None:
    listed = "list=job%3Dwalk"
    text = page(client, f"/r/listed-1?a=n1&mode=time&{listed}")
    assert '<a href="/runs?job=walk">2 / 3</a>' in text
    there = f"a=listed-1%3An1&mode=time&{listed}"
    assert links(text)["["] == f"/r/listed-0?{there}"
    assert links(text)["]"] == f"/r/listed-2?{there}"
    other = page(client, links(text)["["])
    assert links(other)["d"] == "/r/listed-0/diff?a=listed-1%3An1&b=n1"
    assert "[" not in links(other)


def test_a_unique_start_of_an_id_redirects_with_the_choices(client: Client) -> None:
    response = client.get("/r/all-k?sel=n2", follow_redirects=False)
    assert response.headers["location"] == "/r/all-kinds?sel=n2"


def test_a_running_rollout_has_rings_and_no_failures(client: Client) -> None:
    text = page(client, "/r/running")
    assert 'class="ring"' in text
    assert 'class="reason liveness"' in text
    assert "liveness" not in page(client, KINDS)
    assert "n" not in links(text)


def test_a_damaged_log_is_an_error_page_with_the_reason(client: Client) -> None:
    response = client.get("/r/damaged")
    assert response.status_code == 422
    assert "cannot read the log" in response.text


@pytest.mark.parametrize("number", range(len(PAYLOADS)))
def test_no_payload_changes_the_structure_of_the_page(client: Client, number: int) -> None:
    for node, tab in (("n3", "steps"), *(("n1", tab) for tab in TABS), ("n5", "reward")):
        query = f"?sel={node}&tab={tab}&hide="
        text = page(client, f"/r/payload-{number:02}{query}")
        assert not dangers(text)
        assert tags(text) == tags(page(client, PLAIN + query))
        assert "\x00" not in text


def tags(text: str) -> list[str]:
    # An empty title omits its element; no other text of an agent changes an element.
    return [tag for tag in structure(text) if not tag.startswith(("span", "br"))]


@pytest.mark.parametrize("payload", PAYLOADS[:-2])
def test_a_payload_in_the_url_is_text(client: Client, payload: str) -> None:
    names = ("sel", "a", "tab", "mode", "fold", "open", "shut", "hide", "page", "list", "full")
    text = client.get(KINDS, params=dict.fromkeys(names, payload)).text
    assert not dangers(text)
    assert MarkupReader(text).tags.count("script") == MarkupReader(page(client, KINDS)).tags.count(
        "script"
    )


def test_an_unfinished_rollout_without_a_process_is_called_cut_short(client: Client) -> None:
    text = page(client, "/r/running")
    assert "cut short, or running on another host: no process here writes its log" in text
    assert "cut short" not in page(client, KINDS)


def test_the_evidence_says_why_a_state_is_missing(client: Client) -> None:
    text = page(client, f"{KINDS}?sel=n5&tab=evidence")
    assert "not recorded: " in text


def test_the_text_of_folded_steps_is_in_the_page_with_links_that_unfold(client: Client) -> None:
    text = page(client, "/r/long-path?mode=cost")
    [unseen] = re.findall(r'<details class="unseen".*?</details>', text, re.DOTALL)
    assert unseen.count("<li>") == MOST
    url = re.search(r'<a href="(\?sel=n700&amp;mode=cost)">n700</a> run 700', unseen)
    assert url is not None
    assert 'id="t-n700"' not in text
    opened = page(client, "/r/long-path" + url[1].replace("&amp;", "&"))
    assert '<a id="t-n700" aria-selected="true"' in opened


def test_a_small_tree_lists_the_text_of_folded_steps_alone(client: Client) -> None:
    assert 'class="unseen"' not in page(client, KINDS)
    text = page(client, "/r/filtered?shut=n1&sel=n0")
    assert "text of 4 nodes that the tree does not show" in text


def test_a_fork_at_a_model_call_says_the_call_in_words(client: Client) -> None:
    node = next(node.id for node in forked_at_call().nodes if node.branch)
    text = page(client, f"/r/at-call?sel={node}")
    assert "fork x3 at model call 2" in text
    assert "Each child got its own answer to model call 2." in text
