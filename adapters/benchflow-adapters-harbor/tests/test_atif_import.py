"""ATIF is read back: our own export, and what strangers write."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_harbor.atif_import import import_trajectory
from benchflow_adapters_harbor.export.atif import owners, trajectory
from benchflow_contracts import StoreError
from benchflow_testing.fakes import fake_finished_rollout
from hypothesis import given
from hypothesis import strategies as st

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def test_our_own_export_is_imported_with_the_same_words_tools_and_results(tmp_path: Path) -> None:
    rollout = fake_finished_rollout()
    for leaf in rollout.tree.leaves:
        document = trajectory(rollout, leaf, owners(rollout))
        if document is None:
            continue
        file = tmp_path / f"{leaf.id}.json"
        file.write_text(json.dumps(document, indent=1))
        [found] = import_trajectory(file)
        [end] = found.tree.leaves
        ours = [(s.message, s.reasoning, [o.content for o in s.observations]) for s in leaf.steps]
        theirs = [(s.message, s.reasoning, [o.content for o in s.observations]) for s in end.steps]
        assert theirs == ours
        assert (found.imported_from, found.agent, end.results) == ("atif", rollout.agent, {})


@given(st.dictionaries(st.sampled_from(["source", "message", "timestamp", "tool_calls"]), JSON))
def test_a_step_of_a_stranger_is_read_or_refused_by_its_place(
    tmp_path_factory: pytest.TempPathFactory, step: dict[str, Any]
) -> None:
    file = tmp_path_factory.mktemp("atif") / "t.json"
    step = {"source": "agent", **step}
    document = {"schema_version": "ATIF-v1.7", "agent": {"name": "a"}, "steps": [step]}
    file.write_text(json.dumps(document))
    refusal = ""
    try:
        [found] = import_trajectory(file)
        assert (found.finished_at >= 0, len(found.tree.leaves)) == (True, 1)
    except StoreError as error:
        refusal = str(error)
    assert not refusal or "t.json:1: not an ATIF trajectory: steps.0" in refusal
