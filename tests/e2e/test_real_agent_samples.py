"""Real agents behind a model server with token ids: each sampled token is trained on, once.

Claude Code speaks Messages, and Codex speaks Responses. The gateway translates their calls to the
server's chat wire. The server keeps what it sampled, and the samples are compared with that.
"""

# pyright: basic

import json
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import Sample, TrainingOptions
from benchflow_export import samples_of, write_export
from benchflow_store import StoredRollout
from room_booking import book
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm
from scripted_llm.replies import body

pytestmark = [pytest.mark.agents, pytest.mark.timeout(600)]

TASK = Path(__file__).parents[2] / "benchmarks/clawsbench/tasks/book-the-review-room"


@dataclass(frozen=True)
class Answer:
    """One answer of the model server."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: str
    is_work: bool


class Sampler:
    """Books the room with weights that change after the question; keeps each answer."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._lock = threading.Lock()

    def __call__(self, request: ModelRequest) -> ModelReply:
        version = "w1" if len(request.tool_results) < 2 else "w2"
        reply = replace(book(request), policy_version=version)
        with self._lock:
            # The server numbers the answers; only the ids of tool calls have the number.
            number = next(i for i, each in enumerate(self.llm.requests, 1) if each is request)
            self.answers.append(_answer(request, reply, number))
        return reply

    llm: ScriptedLlm


def _answer(request: ModelRequest, reply: ModelReply, number: int) -> Answer:
    whole = body(request, reply, number)
    choice = whole["choices"][0]
    logprobs = tuple(each["logprob"] for each in choice["logprobs"]["content"])
    prompt, completion = tuple(whole["prompt_token_ids"]), tuple(choice["token_ids"])
    version = str(reply.policy_version)
    return Answer(prompt, completion, logprobs, version, is_work=bool(request.tools))


def answers_in(sample: Sample) -> list[Answer]:
    """What the sample says of each answer that it trains on, and what the model had read."""
    found = []
    for sequence in sample.sequences():
        ids = sequence.token_ids
        for span in sequence.spans:
            if span.is_trainable:
                begin = span.start + span.scaffold
                assert span.mask == [False] * span.scaffold + [True] * len(span.logprobs)
                version = str(span.policy_version)
                read, said = tuple(ids[:begin]), tuple(ids[begin : span.end])
                found.append(Answer(read, said, span.logprobs, version, is_work=True))
    return found


def exported(rollout: Any, name: str, output: Path) -> list[dict[str, Any]]:
    """The traces of an export with all leaves."""
    write_export(name, [rollout], output, TrainingOptions(counterfactual=True))
    [line] = output.read_text().splitlines()
    traces: list[dict[str, Any]] = json.loads(line)["traces"]
    return traces


def trained(trace: dict[str, Any]) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """The trained tokens of each node of a trace, with their log-probabilities."""
    found = []
    for node in trace["nodes"]:
        pairs = zip(node["token_ids"], node["mask"], strict=True)
        if any(node["mask"]):
            found.append((tuple(t for t, on in pairs if on), tuple(node["logprobs"])))
    return found


@pytest.mark.parametrize(
    ("agent", "more"),
    [
        ("claude-agent-acp", ()),
        ("codex-acp", ("--agent-env.BENCHFLOW_ASK_MCP", "1")),
    ],
)
def test_each_sampled_token_of_a_real_agent_is_trained_on_once(
    bench: Any, tmp_path: Path, agent: str, more: tuple[str, ...]
) -> None:
    sampler = Sampler()
    with ScriptedLlm(sampler) as llm:
        sampler.llm = llm
        endpoint = ("--base-url", f"{llm.url}/v1", "--model", "mock-model", "--upstream", "vllm")
        branch = ("--branch", "ask-user", "--branch-require", "live")
        record = bench("run", TASK, "--agent", agent, *endpoint, *branch, *more, "--json")
        assert {request.wire for request in llm.requests} == {"chat"}
    rollout = StoredRollout(tmp_path / record["directory"]).read_finished()
    samples = samples_of(rollout)
    assert len(samples) == 3
    work = [answer for answer in sampler.answers if answer.is_work]

    # Each leaf has the answers on its way, and all answers of work are in a leaf, once.
    assert {a for s in samples for a in answers_in(s)} == {*work}
    for sample in samples:
        assert len(answers_in(sample)) == len({*answers_in(sample)})
        assert (sample.breaks, sample.missing_logprobs) == (0, 0)
        assert sample.policy_versions == ("w1", "w2")
    spans = {span.id: span for sample in samples for span in sample.spans}
    assert sum(span.is_trainable for span in spans.values()) == len(work)

    said = [(answer.completion, answer.logprobs) for answer in work]
    [graph] = exported(rollout, "v1-graph", tmp_path / "graph.jsonl")
    assert sorted(trained(graph)) == sorted(said)
    leaves = exported(rollout, "v1-leaves", tmp_path / "leaves.jsonl")
    assert [trained(leaf) for leaf in leaves] == [
        [(answer.completion, answer.logprobs) for answer in answers_in(sample)]
        for sample in samples
    ]
