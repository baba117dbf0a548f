"""BenchFlow's rollouts in the trainers TRL, verl and SkyRL.

No module imports a trainer when it is imported: install the trainer in the same environment.
"""

from .remote import RemoteGroups
from .skyrl import SampleGenerator
from .trl import GroupWorker, RolloutFunction, completion_reward, prompt_rows
from .verl import LostRolloutError, SampleAgentLoop

__all__ = [
    "GroupWorker",
    "LostRolloutError",
    "RemoteGroups",
    "RolloutFunction",
    "SampleAgentLoop",
    "SampleGenerator",
    "completion_reward",
    "prompt_rows",
]
