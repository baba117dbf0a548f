"""Judge data by the package tinker: `python check_tinker.py FILE`. Prints what tinker holds."""

import json
import sys
from pathlib import Path

from benchflow_export.tinker import read_tinker_data
from tinker.types import ForwardBackwardInput

data = read_tinker_data(Path(sys.argv[1]))
batch = ForwardBackwardInput(data=data, loss_fn="importance_sampling")
print(
    json.dumps(
        [
            {
                "tokens": datum.model_input.to_ints(),
                **{key: value.tolist() for key, value in datum.loss_fn_inputs.items()},
            }
            for datum in batch.data
        ]
    )
)
