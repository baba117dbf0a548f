"""Print the names of NeMo Gym's sandbox providers, or why it refuses to list them."""

import json

from nemo_gym.sandbox.providers.registry import list_providers

try:
    print(json.dumps({"names": list_providers()}))
except ValueError as error:
    print(json.dumps({"error": str(error)}))
