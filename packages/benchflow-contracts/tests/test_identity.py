import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from benchflow_contracts import ReapPolicy, RolloutIdentity, SandboxRecord

FIELDS = RolloutIdentity.model_fields.keys() - {"attempt", "deadline", "other"}
NAMES = st.none() | st.text(min_size=1)
OTHER = st.text(min_size=1).filter(lambda key: not key.startswith("benchflow."))
IDENTITIES = st.builds(
    RolloutIdentity,
    **dict.fromkeys(sorted(FIELDS), NAMES),
    attempt=st.none() | st.integers(min_value=1),
    deadline=st.none() | st.integers(min_value=0),
    other=st.dictionaries(OTHER, st.text()),
)


@given(IDENTITIES)
def test_an_identity_is_read_back_from_its_labels(identity):
    assert RolloutIdentity.of_labels(identity.labels()) == identity


@given(st.dictionaries(st.text() | st.sampled_from(["benchflow.attempt"]), st.text()))
def test_any_labels_are_read(labels):
    RolloutIdentity.of_labels(labels)


def test_labels_of_an_older_record_are_read_as_far_as_they_are_known():
    labels = {"benchflow.job": "j", "benchflow.rollout": "r", "benchflow.deadline": "soon"}
    identity = RolloutIdentity.of_labels(labels)
    assert identity == RolloutIdentity(rollout="r", other={"benchflow.job": "j"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempt": 0},
        {"deadline": -1},
        {"scope": ""},
        {"job": "j"},
        {"other": {"benchflow.scope": "s"}},
    ],
)
def test_a_wrong_identity_is_refused(wrong):
    with pytest.raises(ValidationError):
        RolloutIdentity(**wrong)


def test_a_policy_of_one_scope_wants_only_sandboxes_of_that_scope():
    def record(identity):
        return SandboxRecord(
            id="a", provider="p", owner_alive=False, created_at=0, identity=identity
        )

    policy = ReapPolicy(scope="mine", labels={"benchflow.node": "n0"})
    assert record(RolloutIdentity(scope="mine", node="n0")).wanted(policy, 1)
    assert not record(RolloutIdentity(scope="mine", node="n1")).wanted(policy, 1)
    assert not record(RolloutIdentity(scope="another", node="n0")).wanted(policy, 1)
    assert not record(RolloutIdentity(node="n0")).wanted(policy, 1)
    assert record(RolloutIdentity()).wanted(ReapPolicy(), 1)
