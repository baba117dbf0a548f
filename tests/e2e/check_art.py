"""Judge groups by the package openpipe-art: `python check_art.py FILE`. Prints what ART holds."""

import json
import sys
from pathlib import Path
from typing import Any

import art
from benchflow_export.art import read_art_groups
from openai.types.chat.chat_completion import Choice


def sampled(messages: list[Any]) -> list[list[tuple[int, float]]]:
    return [
        [
            (int(each.token.removeprefix("token_id:")), each.logprob)
            for each in item.logprobs.content
        ]
        for item in messages
        if isinstance(item, Choice)
    ]


groups = read_art_groups(Path(sys.argv[1]))
assert all(type(group) is art.TrajectoryGroup for group in groups)
# ART's own copy must keep each field.
again = [art.TrajectoryGroup([t.model_copy(deep=True) for t in group]) for group in groups]
print(
    json.dumps(
        [
            [
                {
                    "reward": trajectory.reward,
                    "sampled": sampled(trajectory.messages_and_choices),
                    "more": [
                        sampled(h.messages_and_choices) for h in trajectory.additional_histories
                    ],
                    "texts": [message["content"] for message in trajectory.messages()],
                }
                for trajectory in group
            ]
            for group in again
        ]
    )
)
