"""Whatever the tree, a trainer trains on tokens that the policy sampled, after what it had read."""

from collections import Counter
from dataclasses import dataclass

from benchflow_contracts import (
    FinishedRollout,
    ModelCall,
    RolloutNode,
    RolloutTree,
    Sample,
    Step,
    Usage,
    VerifyResult,
)
from benchflow_export import samples_of, with_group_advantages
from benchflow_export.sequences import Rendering, TrainedSequence, trained_sequences
from hypothesis import given
from hypothesis import strategies as st

Pair = tuple[tuple[int, ...], int]


@dataclass(frozen=True)
class Turn:
    """One call below an earlier turn."""

    parent: int
    """The distance to the parent, among the turns before."""
    sampled: int
    keeps_prefix: bool
    keeps_messages: bool
    has_logprobs: bool
    has_prompt: bool
    is_replayed: bool
    reward: float | None


TURNS = st.lists(
    st.builds(
        Turn,
        parent=st.integers(1, 4),
        sampled=st.integers(0, 3),
        keeps_prefix=st.sampled_from([True, True, True, False]),
        keeps_messages=st.sampled_from([True, True, True, False]),
        has_logprobs=st.sampled_from([True, True, True, False]),
        has_prompt=st.sampled_from([True, True, True, False]),
        is_replayed=st.sampled_from([False, False, False, True]),
        reward=st.sampled_from([None, 0.0, 0.5, 1.0]),
    ),
    max_size=12,
)


def build(turns: list[Turn]) -> FinishedRollout:
    """Make a tree: each turn is a node with one call. Every token is another number."""
    nodes = [RolloutNode(id="n0")]
    seen: list[tuple[list[dict[str, str]], list[int]]] = [([], [])]
    calls: dict[str, ModelCall] = {}
    fresh = iter(range(1, 10_000))
    for turn in turns:
        at = max(len(nodes) - turn.parent, 0)
        ident = f"c{len(nodes)}"
        messages, tokens = seen[at]
        heard = {"role": "user", "content": ident}
        sent = [*(messages if turn.keeps_messages else []), heard]
        before = tokens if turn.keeps_prefix else [next(fresh) for _ in tokens]
        prompt = [*before, next(fresh)]
        said = [next(fresh) for _ in range(turn.sampled)]
        reply = {"role": "assistant", "content": f"I am {ident}"}
        calls[ident] = ModelCall(
            id=ident,
            node="n",
            api="openai-chat",
            request={"messages": sent},
            response={"choices": [{"message": reply}]},
            status=200,
            replayed=turn.is_replayed,
            prompt_token_ids=tuple(prompt) if turn.has_prompt else None,
            completion_token_ids=tuple(said),
            logprobs=tuple(-token / 10_000 for token in said) if turn.has_logprobs else None,
            usage=Usage(),
            started_at=0,
            finished_at=1,
        )
        step = Step(id=ident, message=ident, model_calls=(ident,), started_at=0, finished_at=1)
        node = RolloutNode(id=f"n{len(nodes)}", parent=nodes[at], step=step)
        nodes[at].children.append(node)
        nodes.append(node)
        seen.append(([*sent, reply], [*prompt, *said]))
        if turn.reward is not None:
            node.results["reward"] = VerifyResult(reward=turn.reward)
    index = {node.id: node for node in nodes}
    return FinishedRollout(
        tree=RolloutTree("r", "t", nodes[0], index, status="completed"),
        task_digest="d",
        instruction="Go.",
        agent="policy",
        model="m",
        sandbox="local",
        finished_at=1,
        calls=calls,
    )


def said(rollout: FinishedRollout, sample: Sample) -> set[Pair]:
    """What the calls of a leaf sampled with log-probabilities in this rollout."""
    pairs: set[Pair] = set()
    for ident in {span.call for span in sample.spans if span.call is not None}:
        call = rollout.calls[ident]
        prompt, tokens = call.prompt_token_ids or (), call.completion_token_ids or ()
        if prompt and call.logprobs is not None and not call.replayed:
            pairs |= {((*prompt, *tokens[:at]), token) for at, token in enumerate(tokens)}
    return pairs


def pairs_of(sequence: TrainedSequence) -> list[Pair]:
    tokens = sequence.token_ids
    return [(tuple(tokens[:at]), tokens[at]) for at, on in enumerate(sequence.mask) if on]


@given(TURNS)
def test_each_leaf_trains_once_on_each_token_that_it_sampled(turns: list[Turn]) -> None:
    rollout = build(turns)
    samples = samples_of(rollout)
    sequences = list(trained_sequences(samples, Rendering("none", "per_leaf")))
    for sample in samples:
        own = [each for each in sequences if each.sample is sample]
        counted = Counter(pair for each in own for pair in pairs_of(each))
        assert counted == Counter(said(rollout, sample))
        for each in own:
            for token, on, logprob in zip(
                each.token_ids, each.mask, each.logprobs(1.0), strict=True
            ):
                assert logprob == (-token / 10_000 if on else 1.0)


@given(TURNS)
def test_a_shared_token_is_trained_on_once_in_the_tree(turns: list[Turn]) -> None:
    rollout = build(turns)
    samples = samples_of(rollout)
    sequences = list(trained_sequences(samples, Rendering("none", "once")))
    counted = Counter(pair for each in sequences for pair in pairs_of(each))
    assert counted == Counter(set[Pair]().union(*(said(rollout, each) for each in samples)))


@given(TURNS)
def test_once_gives_a_token_the_mean_of_the_advantages_that_per_leaf_gives_it(
    turns: list[Turn],
) -> None:
    samples = with_group_advantages(samples_of(build(turns)))
    per_leaf: dict[Pair, list[float]] = {}
    for sequence in trained_sequences(samples, Rendering("intra+inter", "per_leaf")):
        advantages = sequence.advantages()
        for at, on in enumerate(sequence.mask):
            if on:
                pair = (tuple(sequence.token_ids[:at]), sequence.token_ids[at])
                per_leaf.setdefault(pair, []).append(advantages[at])
    once: dict[Pair, float] = {}
    for sequence in trained_sequences(samples, Rendering("intra+inter", "once")):
        advantages = sequence.advantages()
        for at, on in enumerate(sequence.mask):
            if on:
                once[tuple(sequence.token_ids[:at]), sequence.token_ids[at]] = advantages[at]
    assert once.keys() == per_leaf.keys()
    for pair, values in per_leaf.items():
        assert abs(once[pair] - sum(values) / len(values)) < 1e-9
