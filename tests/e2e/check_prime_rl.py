"""Judge episodes by prime-rl's own code: `python check_prime_rl.py SOURCE LEAVES GRAPH SFT`.

SOURCE is a checkout of prime-rl. Its package is not on the index and needs a GPU's libraries, so
this loads the modules that read episodes from their files, beside stand-ins for what they import
and do not use: configuration, logger, torch. Prints what prime-rl would train on.
"""

import asyncio
import importlib.util
import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

from renderers import create_renderer
from renderers.configs import Qwen3RendererConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verifiers.v1.episode import WireEpisode
from verifiers.v1.trace import Branch

SOURCE, LEAVES, GRAPH, SFT = map(Path, sys.argv[1:])
HOME = SOURCE / "src" / "prime_rl"


def stand_in(name: str, **names: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(names)
    sys.modules[name] = module
    return module


def load(name: str) -> Any:
    """Load a module of prime-rl from its file."""
    path = HOME / (name.removeprefix("prime_rl.").replace(".", "/") + ".py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


for package in ("prime_rl", "prime_rl.utils", "prime_rl.configs", "prime_rl.transports"):
    stand_in(package)
stand_in("prime_rl.utils.logger", get_logger=logging.getLogger)
stand_in(
    "prime_rl.configs.algorithm",
    ActionLossType=str,
    AlgoConfig=object,
    FrozenModelConfig=object,
    HierarchicalGRPOAlgoConfig=object,
)
stand_in("prime_rl.transports.rollouts")
wire = load("prime_rl.transports.rollouts.types")
sys.modules["prime_rl.transports.rollouts"].TrainingSample = wire.TrainingSample
stand_in("prime_rl.orchestrator")
stand_in("prime_rl.orchestrator.algo")
trajectories = load("prime_rl.orchestrator.trajectories")
load("prime_rl.orchestrator.algo.base")
load("prime_rl.orchestrator.algo.routing")
hierarchical = load("prime_rl.orchestrator.algo.hierarchical_grpo")
if not hasattr(Branch, "multi_modal_data"):
    # prime-rl needs a later verifiers than 0.4.0 for images; our branches have none.
    Branch.multi_modal_data = None


def episodes(path: Path) -> list[Any]:
    return [WireEpisode.model_validate_json(line) for line in path.read_text().splitlines()]


def training_samples(episode: Any) -> list[dict[str, Any]]:
    return [
        {
            "trace": trace.id,
            "token_ids": sample.token_ids,
            "mask": sample.mask,
            "logprobs": sample.logprobs,
            "advantages": sample.advantages,
        }
        for trace in episode.traces
        for sample in trajectories.trace_to_samples(trace)
    ]


def scored(path: Path) -> list[dict[str, Any]]:
    algorithm = hierarchical.HierarchicalGRPOAlgorithm(
        types.SimpleNamespace(episode_agents=["leaf"]), None
    )
    group = episodes(path)
    asyncio.run(algorithm.finalize_group(group))
    return [sample for episode in group for sample in training_samples(episode)]


class StandIn:
    """A type that is named in annotations."""

    def __class_getitem__(cls, item: object) -> type:
        return cls


def sft_dataset() -> Any:
    """Return prime-rl's own data set of SFT rows, with Qwen3's renderer over bytes as tokens."""
    names = ("Bool", "Int", "Tensor", "Generator", "Dataset")
    names += ("Stateful", "IterableDataset", "StatefulDataLoader")
    types_ = {name: type(name, (StandIn,), {}) for name in names}
    for name in (
        "torch",
        "torch.utils",
        "torch.utils.data",
        "torch.distributed",
        "torch.distributed.checkpoint",
        "torch.distributed.checkpoint.stateful",
        "torchdata",
        "torchdata.stateful_dataloader",
        "jaxtyping",
        "datasets",
        "prime_rl.trainer",
        "prime_rl.trainer.sft",
    ):
        nothing = dict.fromkeys(("interleave_datasets", "load_dataset"))
        stand_in(name, get_worker_info=lambda: None, **types_, **nothing)
    world = types.SimpleNamespace(world_size=1, rank=0)
    stand_in("prime_rl.trainer.world", get_world=lambda: world)
    masks = types.SimpleNamespace(user=False, assistant=True, system=False, tool=False)
    stand_in(
        "prime_rl.configs.sft",
        DataConfig=StandIn,
        SFTDataConfig=StandIn,
        LossMaskConfig=lambda: masks,
    )
    load("prime_rl.utils.chat_template")
    data = load("prime_rl.trainer.sft.data")
    renderer = create_renderer(byte_tokenizer(), Qwen3RendererConfig())
    return data.SFTDataset([], renderer, seq_len=100_000)


def byte_tokenizer() -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = models.BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|endoftext|>", "<think>", "</think>"]
    special += [f"<{end}{name}>" for name in ("tool_call", "tool_response") for end in ("", "/")]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", additional_special_tokens=special
    )


def sft_texts(path: Path) -> list[dict[str, str]]:
    """Return what prime-rl trains on of each row, and the whole text, as text."""
    dataset = sft_dataset()
    tokenizer = dataset.renderer._tokenizer
    found = []
    for line in path.read_text().splitlines():
        made = dataset._process(json.loads(line))
        pairs = zip(made["target_ids"], made["loss_mask"], strict=True)
        trained = [token for token, on in pairs if on]
        text = tokenizer.decode(made["target_ids"])
        found.append({"text": text, "trained": tokenizer.decode(trained)})
    return found


print(
    json.dumps(
        {
            "leaves": [each for episode in episodes(LEAVES) for each in training_samples(episode)],
            "graph": [each for episode in episodes(GRAPH) for each in training_samples(episode)],
            "scored": scored(LEAVES),
            "sft": sft_texts(SFT),
        }
    )
)
