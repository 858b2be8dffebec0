"""The base of all documents: frozen, with no key that nobody knows."""

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """A frozen value that is read from and written to YAML or JSON; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_timedelta="float", regex_engine="python-re")
