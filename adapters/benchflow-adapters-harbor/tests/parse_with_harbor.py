"""Run by Harbor's Python: print what Harbor itself reads from each directory given."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

from harbor.models.verifier.result import VerifierResult
from harbor.verifier.verifier import (
    RewardFileEmptyError,
    RewardFileNotFoundError,
    Verifier,
    VerifierOutputParseError,
)

NAMED = (RewardFileEmptyError, RewardFileNotFoundError, VerifierOutputParseError)


def read(directory):
    # The part of `Verifier.verify` that comes after the tests, in its order.
    paths = SimpleNamespace(
        reward_text_path=directory / "reward.txt", reward_json_path=directory / "reward.json"
    )
    verifier = object.__new__(Verifier)
    verifier.trial_paths = paths
    try:
        if paths.reward_json_path.exists():
            rewards = verifier._parse_reward_json()
        elif paths.reward_text_path.exists():
            rewards = verifier._parse_reward_text()
        else:
            raise RewardFileNotFoundError
        return VerifierResult(rewards=rewards).rewards
    except NAMED as error:
        return type(error).__name__
    except ValueError:
        return "VerifierOutputParseError"


json.dump([read(Path(name)) for name in sys.argv[1:]], sys.stdout)
