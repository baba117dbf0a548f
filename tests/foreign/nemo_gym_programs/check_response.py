"""Read the responses of collected rollouts by NeMo Gym's models; print the classes of the items."""

import json
import sys
from pathlib import Path

from nemo_gym.openai_utils import NeMoGymResponse

row = json.loads(Path(sys.argv[1]).read_text().splitlines()[0])
response = NeMoGymResponse.model_validate(row["response"])
print(json.dumps([type(item).__name__ for item in response.output]))
