"""The base of all documents: frozen, and strict about keys unless a reader of answers asks for less."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from virtcloud.model.errors import BadInput
from virtcloud.model.faults import sentences


class Document(BaseModel):
    """A frozen value that is read from and written to YAML or JSON; unknown keys are refused.

    A client reads answers with ``extra="ignore"``, which holds for nested documents too: a later SBF may send more.
    """

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


def unknown_keys(value: object, path: str = "") -> Iterator[str]:
    """Yield the paths of keys with a value that a document, validated with ``extra="allow"``, does not know."""
    if isinstance(value, Document):
        for key, inner in (value.model_extra or {}).items():
            if inner not in (None, [], {}):
                yield f"{path}{key}"
        for key in type(value).model_fields:
            yield from unknown_keys(getattr(value, key), f"{path}{key}.")
    elif isinstance(value, tuple):
        for index, inner in enumerate(value):
            yield from unknown_keys(inner, f"{path}{index}.")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from unknown_keys(inner, f"{path}{key}.")
