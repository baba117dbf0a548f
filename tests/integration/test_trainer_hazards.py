"""What a trainer must not learn from, in every exporter for trainers that is installed.

Each hazard is a leaf, or a call, beside two good leaves. Its text and its token are in no export,
or the counts say that they are there and the export marks them.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import (
    Exported,
    FinishedRollout,
    TakesTrainingOptions,
    TrainingOptions,
    UsageError,
)
from benchflow_export import load_exporter
from benchflow_kernel import Registry
from trainer_hazards import HAZARDS, TEXT, TOKEN, Trained, mixed_versions, rollout, said, truncated

OF_MESSAGES = {"breaks", "missing_logprobs", "mixed_calls"}
"""Counts that a format of messages does not have: it has no tokens."""


def of_nodes(traces: list[dict[str, Any]]) -> Iterator[Trained]:
    for trace in traces:
        nodes = trace["nodes"]
        for node in nodes:
            path, above = [], node["parent"]
            while above is not None:
                path.append(nodes[above]["token_ids"])
                above = nodes[above]["parent"]
            before = [token for ids in reversed(path) for token in ids]
            # The layout of verifiers' MessageNode. Another one gives tokens the wrong numbers.
            assert len(node["logprobs"]) == sum(node["mask"])
            assert len(node.get("advantages", node["logprobs"])) == sum(node["mask"])
            for at, (token, flag) in enumerate(zip(node["token_ids"], node["mask"], strict=True)):
                if flag:
                    yield (*before, *node["token_ids"][:at]), token


def of_sequence(tokens: list[int], mask: list[bool]) -> Iterator[Trained]:
    for at, flag in enumerate(mask):
        if flag:
            yield tuple(tokens[:at]), tokens[at]


def of_episodes(line: dict[str, Any]) -> Iterator[Trained]:
    return of_nodes(line["traces"])


def of_flat(line: dict[str, Any]) -> Iterator[Trained]:
    return of_nodes([line])


def of_atropos(line: dict[str, Any]) -> Iterator[Trained]:
    for tokens, masks in zip(line["tokens"], line["masks"], strict=True):
        yield from of_sequence(tokens, [mask != -100 for mask in masks])


def of_tinker(line: dict[str, Any]) -> Iterator[Trained]:
    inputs = line["datum"]["loss_fn_inputs"]
    tokens = [
        *line["datum"]["model_input"]["chunks"][0]["tokens"][:1],
        *inputs["target_tokens"]["data"],
    ]
    yield from of_sequence(tokens, [False, *(each != 0 for each in inputs["advantages"]["data"])])


def of_spans(line: dict[str, Any]) -> Iterator[Trained]:
    for span in line["spans"][:-1]:
        prompt = span["attributes"]["prompt_token_ids"]
        response = span["attributes"]["response_token_ids"]
        for at, token in enumerate(response):
            yield (*prompt, *response[:at]), token


def of_choices(line: dict[str, Any]) -> Iterator[Trained]:
    """ART renders the prompts again, so a choice has no tokens before it."""
    for trajectory in line["trajectories"]:
        extra = [each["messages_and_choices"] for each in trajectory["additional_histories"]]
        for item in [item for h in (trajectory["messages_and_choices"], *extra) for item in h]:
            for each in item.get("logprobs", {}).get("content", ()):
                yield (), int(each["token"].removeprefix("token_id:"))


READERS: dict[str, Callable[[dict[str, Any]], Iterator[Trained]]] = {
    "v1-leaves": of_episodes,
    "v1-graph": of_episodes,
    "v1-flat": of_flat,
    "atropos": of_atropos,
    "tinker": of_tinker,
    "agent-lightning": of_spans,
    "art": of_choices,
}
"""The tokens that a line of each format trains on."""


def trainer_formats() -> list[str]:
    names = Registry().names("benchflow.exporters")
    return [name for name in names if isinstance(load_exporter(name), TakesTrainingOptions)]


def has_tokens(name: str) -> bool:
    exporter = load_exporter(name)
    assert isinstance(exporter, TakesTrainingOptions)
    try:
        exporter.with_options(TrainingOptions(require_tokens=True))
    except UsageError:
        return False
    return True


def export(name: str, source: FinishedRollout, directory: Path) -> tuple[str, Exported]:
    directory.mkdir()
    counts = load_exporter(name).export("job", [source], directory)
    files = [path for path in directory.rglob("*") if path.is_file()]
    return "".join(path.read_text() for path in files), counts


def test_each_format_with_tokens_is_read_here() -> None:
    formats = trainer_formats()
    assert {name for name in formats if has_tokens(name)} == set(READERS)
    assert {"verifiers", "sft", "adp"} <= set(formats)


@pytest.mark.parametrize("hazard", HAZARDS)
@pytest.mark.parametrize("name", trainer_formats())
def test_a_hazard_is_left_out_or_reported(name: str, hazard: str, tmp_path: Path) -> None:
    case = HAZARDS[hazard]
    text, counts = export(name, case.make(), tmp_path / "out")
    report = counts.model_dump()
    if case.count and not (case.count in OF_MESSAGES and name not in READERS):
        assert report[case.count] >= 1
    if not case.is_marked:
        assert TEXT not in text
        assert str(TOKEN) not in text


@pytest.mark.parametrize("hazard", HAZARDS)
@pytest.mark.parametrize("name", READERS)
def test_a_trained_token_is_one_that_the_policy_sampled_after_these_tokens(
    name: str, hazard: str, tmp_path: Path
) -> None:
    case = HAZARDS[hazard]
    source = case.make()
    text, counts = export(name, source, tmp_path / "out")
    lines = [json.loads(line) for line in text.splitlines()]
    trained = Counter(pair for line in lines for pair in READERS[name](line))
    calls = dict(source.calls)
    good, allowed = said(calls, ("c1", "c2", "c3")), said(calls, case.may_train)
    if name == "art":
        good, allowed = ({((), token) for _, token in pairs} for pairs in (good, allowed))
    assert good <= set(trained) <= good | allowed
    # Each leaf trains at most once on a token.
    assert max(trained.values()) <= 3
    if name == "v1-graph":
        assert set(trained.values()) == {1}
    if hazard == "truncated" and not name.startswith("v1-"):
        assert set(trained) == good
        assert counts.untrainable == 1


@pytest.mark.parametrize("name", [name for name in READERS if not name.startswith("v1-")])
def test_masked_leaves_are_trained_on_by_request(name: str, tmp_path: Path) -> None:
    for hazard, options in {
        "truncated": TrainingOptions(truncated="train"),
        "mixed-versions": TrainingOptions(mixed_versions="mask"),
    }.items():
        exporter = load_exporter(name)
        assert isinstance(exporter, TakesTrainingOptions)
        home = tmp_path / hazard
        home.mkdir()
        counts = exporter.with_options(options).export("job", [HAZARDS[hazard].make()], home)
        [file] = home.iterdir()
        assert (str(TOKEN) in file.read_text()) == (hazard == "truncated")
        assert counts.untrainable == (0 if hazard == "truncated" else 1)


@pytest.mark.parametrize("name", trainer_formats())
def test_the_versions_and_the_truncation_of_a_leaf_are_in_the_export(
    name: str, tmp_path: Path
) -> None:
    text, _ = export(name, mixed_versions(), tmp_path / "mixed")
    assert "v2" in text
    text, _ = export(name, truncated(), tmp_path / "truncated")
    assert TEXT not in text or "truncated" in text


@pytest.mark.parametrize("name", READERS)
def test_a_replayed_call_of_another_rollout_is_not_trained_on(name: str, tmp_path: Path) -> None:
    source = rollout(None)
    calls = {
        key: each.model_copy(update={"replayed": key == "c1"}) for key, each in source.calls.items()
    }
    text, _ = export(name, replace(source, calls=calls), tmp_path / "out")
    lines = [json.loads(line) for line in text.splitlines()]
    trained = {token for line in lines for _, token in READERS[name](line)}
    assert trained == {7, 9}
