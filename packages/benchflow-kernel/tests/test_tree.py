import copy
import hashlib
import json
import math

import pytest
from benchflow_contracts import (
    Branched,
    BranchRecord,
    EnvState,
    NodeError,
    NodeFailed,
    NodeScored,
    NodeValued,
    RolloutFinished,
    RolloutNode,
    RolloutStarted,
    StateCaptured,
    StateRef,
    Step,
    StepFinished,
    StoreError,
    Value,
    VerifyResult,
    event_adapter,
)
from benchflow_kernel import (
    TreeFold,
    fold,
    trajectories,
    trajectory,
    tree_to_bytes,
    tree_to_json,
    value_of,
)
from hypothesis import given
from hypothesis import strategies as st

ERROR = NodeError(boundary="agent", type="AgentError", message="died")


def step(ident: str) -> Step:
    return Step(id=ident, started_at=0, finished_at=1)


def events() -> list:
    """A root, one step, a fork with two scored children and one lost."""
    made = [
        (RolloutStarted, {"rollout_id": "r", "task_id": "t", "root": "n0", "meta": {"k": [1]}}),
        (StepFinished, {"node": "n1", "parent": "n0", "step": step("s1")}),
        (
            Branched,
            {
                "node": "n1",
                "record": BranchRecord(
                    policy="ask-user", fidelity="replay", reason="r", children=3
                ),
            },
        ),
        (StepFinished, {"node": "n2", "parent": "n1", "step": step("s2"), "label": "a"}),
        (StepFinished, {"node": "n3", "parent": "n1", "step": step("s3"), "label": "b"}),
        (StepFinished, {"node": "n5", "parent": "n2", "step": step("s4")}),
        (NodeScored, {"node": "n5", "name": "reward", "result": VerifyResult(reward=1.0)}),
        (NodeScored, {"node": "n3", "name": "reward", "result": VerifyResult(reward=0.0)}),
        (NodeFailed, {"node": "n4", "parent": "n1", "label": "c", "error": ERROR}),
        (NodeValued, {"node": "n1", "value": Value(mean=0.5, n=2, variance=0.5, stderr=0.5)}),
        (RolloutFinished, {"status": "completed"}),
    ]
    return [kind(seq=seq, ts=float(seq), **fields) for seq, (kind, fields) in enumerate(made)]


def test_the_tree_has_the_nodes_in_order_with_their_labels_and_results():
    tree = fold(events())
    assert [node.id for node in tree.nodes] == ["n0", "n1", "n2", "n5", "n3", "n4"]
    assert [leaf.id for leaf in tree.leaves] == ["n5", "n3", "n4"]
    assert tree.index["n1"].branch.children == 3
    lost = tree.index["n4"]
    assert (lost.label, lost.step, lost.reward, lost.error) == ("c", None, None, ERROR)


def test_folding_is_pure():
    made = events()
    before = copy.deepcopy(made)
    first, second = fold(made), fold(made)
    assert made == before
    assert first.root is not second.root
    assert tree_to_bytes(first) == tree_to_bytes(second)


@given(cut=st.integers(min_value=1, max_value=11))
def test_folding_a_prefix_and_then_the_rest_is_folding_all(cut):
    state = TreeFold()
    for event in events()[:cut]:
        state.apply(event)
    assert tree_to_bytes(state.tree) == tree_to_bytes(fold(events()[:cut]))
    for event in events()[cut:]:
        state.apply(event)
    assert tree_to_bytes(state.tree) == tree_to_bytes(fold(events()))


def numbered(log: list) -> list:
    return [event.model_copy(update={"seq": at}) for at, event in enumerate(log)]


def progress_at(node: str, kind: str):
    """Return an event for live views, in the world that began at the root."""
    fields = {
        "turn_started": {"turn": 0, "role": "agent", "prompt": "Do it."},
        "step_started": {"role": "agent"},
        "tool_call_started": {"call": "c", "title": "ls"},
        "tool_call_ended": {"call": "c", "status": "failed"},
        "question_opened": {"ask": "q", "ask_kind": "question", "text": "Which?"},
        "question_answered": {"ask": "q", "outcome": "answered", "by": "user"},
        "usage_reported": {"source": "gateway"},
        "state_unavailable": {"reason": "the server is gone"},
    }[kind]
    world = {} if kind == "state_unavailable" else {"world": "n0"}
    head = {"kind": kind, "seq": 0, "ts": 0.0, "node": node}
    return event_adapter.validate_python({**head, **world, **fields})


KINDS = (
    "turn_started",
    "step_started",
    "tool_call_started",
    "tool_call_ended",
    "question_opened",
    "question_answered",
    "usage_reported",
    "state_unavailable",
)


@given(inserted=st.lists(st.tuples(st.integers(1, 11), st.sampled_from(KINDS)), max_size=12))
def test_events_of_what_begins_leave_the_tree_as_it_is(inserted):
    log = events()
    for place, kind in sorted(inserted, key=lambda each: each[0], reverse=True):
        log.insert(place, progress_at("n0", kind))
    assert tree_to_bytes(fold(numbered(log))) == tree_to_bytes(fold(events()))


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_of_what_begins_names_a_node_of_the_tree(kind):
    with pytest.raises(StoreError, match="n9"):
        fold([events()[0], progress_at("n9", kind)])


STATES = st.builds(
    EnvState, files=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)
)


@given(states=st.lists(STATES, min_size=1, max_size=4), inline=st.lists(st.booleans(), min_size=4))
def test_a_log_with_inline_states_gives_the_digests_of_a_log_with_files(states, inline):
    log, digests = events()[:6], {}
    nodes = ["n0", "n1", "n2", "n3"]
    for node, state, old in zip(nodes, states, inline, strict=False):
        text = state.model_dump_json().encode()
        digests[node] = f"sha256:{hashlib.sha256(text).hexdigest()}"
        ref = StateRef(digest=digests[node], size=len(text), path="states/x.json")
        fields = {"state": state} if old else {"ref": ref}
        log.append(StateCaptured(seq=0, ts=0, node=node, **fields))
    tree = fold(numbered(log))
    found = {n["id"]: n["state"]["digest"] for n in tree_to_json(tree)["nodes"] if n["state"]}
    assert found == digests
    for node, state, old in zip(nodes, states, inline, strict=False):
        assert tree.index[node].env_state == (state if old else None)


def test_tree_json_says_everything_in_one_order():
    data = json.loads(tree_to_bytes(fold(events())))
    assert data == tree_to_json(fold(events()))
    assert list(data) == [
        "schema_version",
        "rollout_id",
        "task_id",
        "status",
        "error",
        "root",
        "meta",
        "images",
        "doors",
        "nodes",
    ]
    node = data["nodes"][3]
    assert (node["id"], node["parent"], node["step"]["id"]) == ("n5", "n2", "s4")
    assert node["results"]["reward"]["reward"] == 1.0
    assert data["nodes"][5]["error"]["message"] == "died"


def contradiction(**fields):
    return [*events()[:2], StepFinished(seq=2, ts=2, step=step("x"), **fields)]


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ([], "rollout_started"),
        (events()[1:2], "'n0'"),
        ([events()[0], events()[0]], "twice"),
        (contradiction(node="n9", parent="n7"), "'n7'"),
        (contradiction(node="n1", parent="n0"), "'n1' twice"),
    ],
)
def test_events_that_contradict_each_other_are_refused(log, says):
    with pytest.raises(StoreError, match=says):
        fold(log)


def test_a_trajectory_is_the_path_to_its_leaf():
    tree = fold(events())
    first, second, lost = trajectories(tree)
    assert [s.id for s in first.steps] == ["s1", "s2", "s4"]
    assert (first.branch, first.reward, first.leaf) == (("a",), 1.0, "n5")
    assert (second.branch, second.reward) == (("b",), 0.0)
    assert (lost.branch, lost.reward, [s.id for s in lost.steps]) == (("c",), None, ["s1"])
    assert trajectory(tree, tree.index["n5"]) == first


def tree_of(shape) -> RolloutNode:
    """A number or None is a leaf's reward; a list is a node with children."""
    node = RolloutNode(id=str(id(shape)) + str(len(repr(shape))))
    if isinstance(shape, list):
        for place, part in enumerate(shape):
            child = tree_of(part)
            for item in child.subtree:
                item.id = f"{place}.{item.id}"
            child.parent = node
            node.children.append(child)
    elif shape is not None:
        node.results["reward"] = VerifyResult(reward=shape)
    else:
        node.results["reward"] = VerifyResult.unscored("lost")
    return node


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (0.5, (0.5, 1, 0.0)),
        (None, None),
        ([], None),
        ([1.0], (1.0, 1, 0.0)),
        ([1.0, 0.0], (0.5, 2, 0.5)),
        ([1.0, 0.0, None], (0.5, 2, 0.5)),
        ([None, None], None),
        ([0.0, 0.0, 0.0], (0.0, 3, 0.0)),
        ([[1.0, 1.0], [0.0]], (0.5, 2, 0.5)),
        ([[1.0, 0.0, 0.0, 0.0], 1.0], (0.625, 2, 0.28125)),
        ([[None], 1.0], (1.0, 1, 0.0)),
        ([[[0.25]]], (0.25, 1, 0.0)),
        ([[1.0, 0.0]], (0.5, 2, 0.5)),
        ([-1.0, 2.0, 2.0], (1.0, 3, 3.0)),
    ],
)
def test_v_is_the_mean_of_the_scored_childrens_returns(shape, expected):
    value = value_of(tree_of(shape))
    if expected is None:
        assert value is None
    else:
        mean, n, variance = expected
        assert value == Value(mean=mean, n=n, variance=variance, stderr=math.sqrt(variance / n))


def test_v_of_a_very_long_path_needs_no_recursion():
    node = RolloutNode(id="leaf", results={"reward": VerifyResult(reward=1.0)})
    for place in range(20_000):
        parent = RolloutNode(id=f"n{place}", children=[node])
        node.parent = parent
        node = parent
    assert value_of(node).mean == 1.0
