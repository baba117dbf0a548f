import pytest
from benchflow_serve_client import (
    GroupPlace,
    GroupRequest,
    InlineFile,
    ModelEndpoint,
    RolloutRequest,
)
from pydantic import ValidationError

ENDPOINT = ModelEndpoint.model_validate(
    {"url": "http://127.0.0.1:8000/v1", "model": "m", "api_key": "canary-key"}
)


def test_a_request_names_a_policy_or_an_endpoint() -> None:
    with pytest.raises(ValidationError, match="not both"):
        RolloutRequest(task="t", policy="p", endpoint=ENDPOINT)


def test_the_place_in_a_group_is_below_its_size() -> None:
    with pytest.raises(ValidationError, match="index 2 is not below the size 2"):
        GroupPlace(id="g", size=2, index=2)


def test_a_group_sets_the_places_of_its_members() -> None:
    place = GroupPlace(id="g", size=2, index=0)
    with pytest.raises(ValidationError, match=r"leave out 'rollout\.group'"):
        GroupRequest(size=2, rollout=RolloutRequest(task="t", group=place))


@pytest.mark.parametrize("content", [{}, {"text": "a", "base64": "YQ=="}])
def test_an_inline_file_has_one_content(content: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="exactly one"):
        InlineFile.model_validate(content)


@pytest.mark.parametrize("name", ["../etc", "a/b", "", ".hidden", "a b", "x" * 200])
def test_a_name_that_is_not_safe_in_a_url_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        GroupPlace(id=name, size=1, index=0)


def test_the_key_of_an_endpoint_is_not_in_json_or_repr() -> None:
    assert "canary-key" not in ENDPOINT.model_dump_json()
    assert "canary-key" not in repr(ENDPOINT)
