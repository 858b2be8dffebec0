"""The base of all documents: frozen, with no key that nobody knows."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer

from virtcloud.model.errors import BadInput
from virtcloud.model.faults import sentences


class Document(BaseModel):
    """A frozen value that is read from and written to YAML or JSON; unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_timedelta="float", regex_engine="python-re", use_attribute_docstrings=True
    )

    def __init__(self, /, **keys: Any) -> None:  # noqa: ANN401 - as pydantic's
        """Construct a document. Raise BadInput with every fault, which pydantic's own error is not."""
        try:
            super().__init__(**keys)
        except ValidationError as error:
            raise BadInput(f"{type(self).__name__}: {sentences(error)}") from error

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined] # parsing does not call it: there the keys' paths count


class WithNewKeys(Document):
    """A document with keys that older agents and clients refuse: they are written only where they say something."""

    new_keys: ClassVar[Mapping[str, object]] = {}
    """Each new key with the value that says nothing."""

    @model_serializer(mode="wrap")
    def _without_what_says_nothing(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        for key, nothing in self.new_keys.items():
            if getattr(self, key) == nothing:
                written.pop(key, None)
        return written
