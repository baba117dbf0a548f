"""Judge trace files by the package that defines the format: verifiers 0.4.0, or 0.3.1.

Runs in an environment of its own: `python check_traces.py EPISODES.jsonl... --flat TRACES.jsonl`.
Ends with an error, or prints a JSON object of what a trainer would see.
"""

import argparse
import inspect
import json
from pathlib import Path
from typing import Any

from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.episode import WireEpisode
from verifiers.v1.state import State
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import Trace

WireTrace = Trace[WireTaskData, State, WireAgentConfig]


def seen(trace: Any) -> dict[str, Any]:
    """Return what the package makes of one trace."""
    assert trace.ok
    assert not trace.errors
    for node in trace.nodes:
        assert len(node.mask) == len(node.token_ids)
        assert len(node.logprobs) == sum(node.mask)
    return {
        "reward": trace.reward,
        "agent": trace.agent.name,
        "branches": [
            {
                "token_ids": branch.token_ids,
                "mask": branch.sampled_mask,
                "texts": [message.content for message in branch.messages],
                "logprobs": branch.logprobs,
            }
            for branch in trace.branches
        ],
    }


def record(episode: Any) -> dict[str, Any]:
    """Return the record with all decimals; 0.3.1 has no option for them."""
    options = inspect.signature(episode.to_record).parameters
    exact: dict[str, Any] = {"float_decimals": None} if "float_decimals" in options else {}
    written: dict[str, Any] = episode.to_record(**exact)
    return written


def episodes(path: Path) -> list[dict[str, Any]]:
    made = []
    for line in path.read_text(encoding="utf-8").splitlines():
        episode = WireEpisode.model_validate_json(line)
        assert record(WireEpisode.model_validate(record(episode))) == record(episode)
        assert episode.ok
        made.append({"group": episode.group.id, "traces": [seen(one) for one in episode.traces]})
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--flat", type=Path, required=True)
    args = parser.parse_args()
    flat = [WireTrace.model_validate_json(line) for line in args.flat.read_text().splitlines()]
    found = {path.name: episodes(path) for path in args.files}
    print(json.dumps({**found, "flat": [seen(trace) for trace in flat]}))


if __name__ == "__main__":
    main()
