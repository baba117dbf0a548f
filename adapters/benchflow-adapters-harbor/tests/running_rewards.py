"""What a verifier may leave behind, and what Harbor 0.24 makes of it."""

from running_case import Case, files, passes

ONE = {"reward": 1.0}


def leaves(text: str, json: str | None = None, status: int = 0) -> dict[str, str]:
    """Return a task whose test leaves these reward files and ends with this status."""
    lines = ["#!/bin/sh", f"printf '{text}' > /logs/verifier/reward.txt"]
    if json is not None:
        lines.append(f"printf '{json}' > /logs/verifier/reward.json")
    return files(test="\n".join([*lines, f"exit {status}", ""]))


REWARDS = {
    "json-beats-text": Case(leaves("0", '{"reward": 1}'), ONE),
    "bad-json-beats-text": Case(leaves("1", '{"reward": '), None, "VerifierOutputParseError"),
    "several-keys": Case(
        leaves("0", '{"correct": 1, "style": 0.25, "signed": -2}'),
        {"correct": 1, "style": 0.25, "signed": -2},
    ),
    "no-keys": Case(leaves("1", "{}"), {}),
    "truth-is-a-number": Case(leaves("0", '{"reward": true}'), {"reward": 1}),
    "exit-code-is-ignored": Case(leaves("  0.5\\n", status=1), {"reward": 0.5}),
    "no-reward": Case(files(test="#!/bin/sh\ntrue\n"), None, "RewardFileNotFoundError"),
    "empty-reward": Case(leaves(""), None, "RewardFileEmptyError"),
    "empty-json": Case(leaves("1", ""), None, "RewardFileEmptyError"),
    "nan-reward": Case(leaves("nan"), None, "VerifierOutputParseError"),
    "infinite-json": Case(leaves("1", '{"reward": 1e309}'), None, "VerifierOutputParseError"),
    "words-for-a-reward": Case(leaves("passed"), None, "VerifierOutputParseError"),
    "words-in-json": Case(leaves("1", '{"reward": "1"}'), None, "VerifierOutputParseError"),
    "verifier-timeout": Case(
        files(
            test="#!/bin/sh\necho 1 > /logs/verifier/reward.txt\nsleep 100\n",
            toml="[verifier]\ntimeout_sec = 2\n",
        ),
        None,
        "VerifierTimeoutError",
    ),
    "output-is-kept": Case(
        files(
            test=passes(
                "echo told; echo warned >&2",
                "grep -qx told /logs/verifier/test-stdout.txt",
                "grep -qx warned /logs/verifier/test-stdout.txt",
            )
        ),
        ONE,
    ),
}
