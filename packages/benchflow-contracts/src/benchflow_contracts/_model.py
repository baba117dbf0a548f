"""The base of every data model in the contracts."""

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """A frozen, strict-keyed record that may cross a process or a disk."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class RareModel(Model):
    """A Model whose validator is built on its first use: most processes import it for nothing."""

    model_config = ConfigDict(defer_build=True)
