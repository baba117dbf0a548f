"""What an endpoint returns of its tokens, over real sockets."""

import asyncio
from typing import Any

import pytest
from benchflow_contracts import Endpoint
from benchflow_gateway import ProbeError, probe_tokens
from gateway_peers import KEY, Taken, hand_written, whole

CHOICE: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": "a"}}
LOGPROBS = {"content": [{"token": "a", "logprob": -1.0}]}


def probe(body: dict[str, Any], status: str = "200 OK") -> str:
    async def main() -> str:
        async def behave(taken: Taken) -> None:
            assert taken.body["max_tokens"] == 1
            await taken.write(whole(body, status=status))

        async with hand_written(behave) as endpoint:
            return await probe_tokens(endpoint, "m")

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "level"),
    [
        (
            {
                "prompt_token_ids": [1],
                "choices": [{**CHOICE, "token_ids": [2], "logprobs": LOGPROBS}],
            },
            "tokens+logprobs",
        ),
        ({"prompt_token_ids": [1], "choices": [{**CHOICE, "token_ids": [2]}]}, "tokens"),
        ({"choices": [{**CHOICE, "token_ids": [2], "logprobs": LOGPROBS}]}, "text"),
        ({"choices": [CHOICE]}, "text"),
        ({}, "text"),
    ],
)
def test_the_level_of_an_endpoint_is_what_its_answer_has(body: dict[str, Any], level: str) -> None:
    assert probe(body) == level


def test_a_refusal_has_the_reason_and_not_the_key() -> None:
    key = KEY.split()[1]
    with pytest.raises(ProbeError, match="answered 401: no such key") as caught:
        probe({"error": {"message": f"no such key {key}"}}, "401 Unauthorized")
    assert "sk-the-real" not in str(caught.value)


def test_an_endpoint_that_is_down_is_a_typed_error() -> None:
    with pytest.raises(ProbeError, match="did not answer"):
        asyncio.run(probe_tokens(Endpoint(url="http://127.0.0.1:1/v1"), "m"))
