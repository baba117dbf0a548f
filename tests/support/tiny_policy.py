"""A tiny causal model with random weights, and forked rollouts that it sampled. Needs torch."""

from pathlib import Path
from typing import Any

from benchflow_contracts import FinishedRollout, ModelCall, VerifyResult
from forked_calls import forked, recorded

VOCABULARY = 32
PAD, END = 0, 1


def save_tiny_model(directory: Path) -> Path:
    """Write a Llama of two layers, and a tokenizer whose words are numbers."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=END,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(directory)
    words = {"<pad>": PAD, "<end>": END, **{f"w{n}": n for n in range(2, VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", padding_side="left"
    ).save_pretrained(directory)
    return directory


def log_probabilities(model: Any, prompt: list[int], completion: list[int]) -> list[float]:
    """Return the log-probability of each token of the completion."""
    import torch

    ids = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        logits = model(ids).logits[0].float()
    scores = torch.log_softmax(logits, dim=-1)
    places = range(len(prompt) - 1, len(prompt) + len(completion) - 1)
    return [float(scores[at, token]) for at, token in zip(places, completion, strict=True)]


def forked_rollout(model: Any, name: str, rewards: tuple[float, float], version: str = "v1") -> Any:
    """Return the rollout of `forked_calls`, with the tokens as the model would have said them."""
    calls: list[ModelCall] = []
    for each in recorded():
        prompt, said = [*(each.prompt_token_ids or ())], [*(each.completion_token_ids or ())]
        logprobs = log_probabilities(model, prompt, said)
        calls.append(each.model_copy(update={"logprobs": logprobs, "policy_version": version}))
    rollout: FinishedRollout = forked(calls, rollout_id=name)
    left, right, _ = rollout.tree.leaves
    left.results["reward"] = VerifyResult(reward=rewards[0])
    right.results["reward"] = VerifyResult(reward=rewards[1])
    return rollout
