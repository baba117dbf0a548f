"""A causal language model of ten tokens, and its chat template.

The model reads the states of the lock and says one digit, or that it stops.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

STATES = [f"right {n}" for n in range(3)] + [f"jammed {n}" for n in range(3)] + ["open 3"]
ACTIONS = ["0", "1", "stop"]
VOCABULARY = [*STATES, *ACTIONS]
STOP = VOCABULARY.index("stop")
CONTEXT = 32
BEST = ["right 0", "1", "right 1", "0", "right 2", "1"]


def new_model(seed: int) -> GPT2LMHeadModel:
    """Return a model with random weights, about 27,000 of them."""
    torch.manual_seed(seed)
    size = GPT2Config(
        vocab_size=len(VOCABULARY), n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2,
        bos_token_id=None, eos_token_id=STOP,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(size)


def render(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the tokens of a conversation: the states, and the actions as they were sampled.

    A conversation with more messages has the same tokens first, so no prompt breaks its chain.
    """
    tokens: list[int] = []
    for message in messages:
        if message["role"] == "user":
            tokens.append(VOCABULARY.index("right 0"))
        elif message["role"] == "tool":
            # The tool of the agent adds a line with the exit code.
            state = message["content"].partition("\n")[0].strip()
            tokens.append(VOCABULARY.index(state))
        elif message["role"] == "assistant":
            tokens.append(action_of(message))
    return tokens


def action_of(message: Mapping[str, Any]) -> int:
    """Return the token of one of the model's own messages."""
    calls = message.get("tool_calls")
    if not calls:
        return STOP
    digit = calls[0]["function"]["arguments"].rpartition("dial ")[2][0]
    return VOCABULARY.index(digit)


def message_of(token: int, call_id: str) -> dict[str, Any]:
    """Return the message that a sampled token stands for. A state is not a valid action: it stops.

    The model learns to avoid states, as it learns everything else.
    """
    word = VOCABULARY[token]
    if word not in ACTIONS[:-1]:
        return {"role": "assistant", "content": word}
    function = {"name": "shell", "arguments": f'{{"command": "dial {word}"}}'}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def token_logprobs(model: GPT2LMHeadModel, tokens: Sequence[int]) -> torch.Tensor:
    """Return the log-probability of each token after the ones before it; 0 for the first one."""
    ids = torch.tensor([list(tokens)])
    logits = model(input_ids=ids).logits[0, :-1]
    chosen = torch.log_softmax(logits, dim=-1).gather(1, ids[0, 1:, None])[:, 0]
    return torch.cat([torch.zeros(1), chosen])


def expected_return(model: GPT2LMHeadModel) -> torch.Tensor:
    """Return the expected return: a third for each right digit before the first wrong one."""
    right = token_logprobs(model, [VOCABULARY.index(word) for word in BEST])[1::2].exp()
    return right.cumprod(0).sum() / 3


def exact_value(model: GPT2LMHeadModel) -> float:
    """Return the expected return as a number."""
    with torch.no_grad():
        return float(expected_return(model))
