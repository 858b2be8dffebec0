"""Documents that are exchanged as YAML or JSON: their base class, and their keys."""

import ast
import inspect
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from operator import not_
from textwrap import dedent
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from virtcloud.model.errors import BadInput
from virtcloud.model.validation_errors import format_validation_errors

OMIT_EMPTY: Final = Field(exclude_if=not_)
"""Option of a field: documents omit the key if its value is empty, because older versions reject unknown keys."""
OMIT_NONE: Final = Field(exclude_if=lambda value: value is None)
"""Option of a field: documents omit the key if its value is None, because older versions reject unknown keys."""


_GIVEN_KEYS: Final[dict[frozenset[str], set[str]]] = {}


class Document(BaseModel):
    """A frozen value that is read from and written to YAML or JSON. Unknown keys are errors.

    Clients parse SBF's answers, including nested documents, with ``extra="ignore"``: a later version of SBF may send
    more keys.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_timedelta="float", regex_engine="python-re")

    def __init__(self, /, **keys: Any) -> None:  # noqa: ANN401 - as in pydantic
        """Create a document. If values are invalid, raise BadInput with all errors, instead of ValidationError."""
        try:
            super().__init__(**keys)
        except ValidationError as error:
            raise BadInput(f"{type(self).__name__}: {format_validation_errors(error)}") from error

    # pydantic's parsers do not call an __init__ with this mark, so the errors of nested documents keep their full paths
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the JSON schema. The docstring of a field is the description of the property.

        pydantic's option ``use_attribute_docstrings`` would parse the source code of every document during the import.
        """
        result = handler(schema)
        properties = handler.resolve_ref_schema(result).get("properties", {})
        for name, text in _read_field_docstrings(cls):
            properties[name].setdefault("description", text)
        return result


class PlainDocument(Document):
    """A document without cached properties. Its instances are compared faster than those of other documents.

    pydantic's comparison of two documents omits the values of cached properties, which takes most of its time. A change
    of a topology can compare hundreds of thousands of hosts and links.
    """

    def __eq__(self, other: object) -> bool:
        """Return whether both documents have the same class and equal values."""
        if not isinstance(other, PlainDocument):
            return NotImplemented
        return self is other or (
            type(self) is type(other)
            and self.__dict__ == other.__dict__
            and (self.__pydantic_extra__ or {}) == (other.__pydantic_extra__ or {})
        )

    __hash__ = Document.__hash__


def _read_field_docstrings(kind: type[Document]) -> Iterator[tuple[str, str]]:
    """Yield the fields that have a docstring, and the docstrings, unless the source code is missing."""
    for base in inspect.getmro(kind)[: inspect.getmro(kind).index(Document)]:
        with suppress(OSError):
            definition = ast.parse(dedent(inspect.getsource(base))).body[0]
            for pair in pairwise(ast.iter_child_nodes(definition)):
                match pair:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        yield name, inspect.cleandoc(text)


def share_given_keys(documents: Iterable[Document]) -> None:
    """Share one set of keys between documents with the same keys (``model_fields_set``).

    Without shared sets, each host of a topology has a separate set, which takes 730 bytes.
    """
    for document in documents:
        given = document.model_fields_set
        object.__setattr__(document, "__pydantic_fields_set__", _GIVEN_KEYS.setdefault(frozenset(given), given))


def find_unknown_keys(value: object, path: str = "") -> Iterator[str]:
    """Yield the path of each key that the document's model does not define. Skip keys with an empty value.

    The document must have been validated with ``extra="allow"``.
    """
    if isinstance(value, Document):
        for key, inner in (value.model_extra or {}).items():
            if inner not in (None, [], {}):
                yield f"{path}{key}"
        for key in type(value).model_fields:
            yield from find_unknown_keys(getattr(value, key), f"{path}{key}.")
    elif isinstance(value, tuple):
        for index, inner in enumerate(value):
            yield from find_unknown_keys(inner, f"{path}{index}.")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from find_unknown_keys(inner, f"{path}{key}.")
