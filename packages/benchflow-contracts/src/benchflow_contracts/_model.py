"""The base of every data model in the contracts."""

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """A frozen, strict-keyed record that may cross a process or a disk."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")
