"""Documents that are exchanged as YAML or JSON: their base class, the parser, and error messages.

An error message has the form "expected …, got …". A message about a YAML file starts with the file's name and line.
"""

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from operator import not_
from textwrap import dedent
from typing import Any, Final, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from virtcloud.model.errors import BadDocument, BadInput
from virtcloud.model.yaml_loader import UniqueKeyLoader

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

        With pydantic's option ``use_attribute_docstrings``, pydantic would parse the source code of every document
        during the import.
        """
        result = handler(schema)
        properties = handler.resolve_ref_schema(result).get("properties", {})
        for name, text in _read_field_docstrings(cls):
            properties[name].setdefault("description", text)
        return result


class PlainDocument(Document):
    """A document without cached properties. Its instances are compared faster than those of other documents.

    pydantic's comparison ignores values of cached properties, which takes most of its time. A topology can contain
    hundreds of thousands of hosts and links, and a change of the topology compares these hosts and links.
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
    """Yield the fields that have a docstring, and the docstrings. Yield no field if the source code is missing."""
    for base in inspect.getmro(kind)[: inspect.getmro(kind).index(Document)]:
        with suppress(OSError):
            definition = ast.parse(dedent(inspect.getsource(base))).body[0]
            for pair in pairwise(ast.iter_child_nodes(definition)):
                match pair:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        yield name, inspect.cleandoc(text)


def share_given_keys(documents: Iterable[Document]) -> None:
    """Replace the sets of keys (``model_fields_set``) so that documents with the same keys share one set.

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


D = TypeVar("D", bound=Document)
_DATA_KINDS: Mapping[type, str] = {type(None): "an empty document", list: "a list", str: "a text"}
"""Kinds of YAML documents that are not mappings, for messages."""


@dataclass(frozen=True, slots=True)
class YamlText:
    """A parsed YAML text: its nodes with line numbers, and its data. ``source`` is the name of the text in messages."""

    source: str
    root: yaml.Node | None
    data: object

    def read(self, kind: type[D]) -> D:
        """Return the document. If the data are invalid, raise BadDocument that lists every error."""
        if not isinstance(self.data, dict):
            got = _DATA_KINDS.get(type(self.data), "another value")
            raise BadDocument(f"{self.source}:1: expected a mapping with the keys {_list_keys(kind)}, got {got}")
        try:
            return kind.model_validate(self.data)
        except ValidationError as error:
            faults = (
                self.locate_error(detail, fault_path(detail)) + _describe_similar_key(kind, detail)
                for detail in list_validation_errors(error)
            )
            raise BadDocument("\n".join(faults)) from error

    def locate(self, path: Sequence[str | int], message: str) -> str:
        """Return a message with the source and the line of ``path``."""
        key = ".".join(str(part) for part in path) or "document"
        return f"{self.source}:{_find_line(self.root, path)}: {key}: {message}"

    def locate_error(self, detail: ErrorDetails, path: Sequence[str | int]) -> str:
        """Return the explanation of an error with the source and the line of ``path``."""
        return self.locate(path, explain_validation_error(detail))


def parse_yaml(text: str, source: str) -> YamlText:
    """Parse a text. If the text is not YAML, or if a mapping contains a key twice, raise BadDocument."""
    try:
        text.encode()
        loader = UniqueKeyLoader(text)
        root = loader.get_single_node()
        return YamlText(source, root, None if root is None else loader.construct_document(root))
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise BadDocument(f"{source}:{line}: expected YAML in UTF-8, got other bytes") from error
    except yaml.YAMLError as error:
        raise BadDocument(_syntax_message(source, error)) from error
    except RecursionError as error:
        raise BadDocument(f"{source}: expected YAML with fewer nested levels") from error


def read_document(text: str, source: str, kind: type[D]) -> D:
    """Parse a document from YAML. JSON is also accepted, because JSON is a subset of YAML.

    ``source`` is the name of the text in messages, such as a file name. If the text is invalid, raise BadDocument that
    lists every error as ``source:line: key: expected …, got …``. Lone surrogates in ``text`` represent bytes that are
    not UTF-8 (error handler ``surrogateescape``).
    """
    return parse_yaml(text, source).read(kind)


def _syntax_message(source: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark else 1
    return f"{source}:{line}: not YAML: {getattr(error, 'problem', None) or error}"


def _list_keys(kind: type[Document]) -> str:
    return ", ".join(kind.model_fields)


def _describe_similar_key(kind: type[Document], detail: ErrorDetails) -> str:
    """Return the key of the document that is most similar to an unknown key, for the end of a message, or ""."""
    if detail["type"] != "extra_forbidden":
        return ""
    *path, unknown = detail["loc"]
    similar = get_close_matches(str(unknown), sorted(_find_keys(kind, path)), n=1)
    return f" (similar: {similar[0]})" if similar else ""


def _find_keys(kind: object, path: Sequence[str | int]) -> set[str]:
    """Return the keys of the documents at ``path`` below a type, such as the items of a tuple."""
    if isinstance(kind, type) and issubclass(kind, Document):
        if not path:
            return set(kind.model_fields)
        field = kind.model_fields.get(str(path[0]))
        return set() if field is None else _find_keys(field.annotation, path[1:])
    rest = path[1:] if get_origin(kind) in {tuple, list, dict} else path
    return {key for inner in get_args(kind) for key in _find_keys(inner, rest)}


def fault_path(detail: ErrorDetails) -> list[str | int]:
    """Return the path of the value that an error concerns."""
    return [*detail["loc"], *getattr(detail.get("ctx", {}).get("error"), "path", ())]


def _find_line(node: yaml.Node | None, path: Sequence[str | int]) -> int:
    """Return the line (from 1) of the deepest node on ``path``. For a mapping's value, return the line of its key."""
    if node is None:
        return 1
    line, rest = int(node.start_mark.line) + 1, list(path)
    while rest and (child := _find_child(node, rest.pop(0))):
        key, node = child
        line = int(key.start_mark.line) + 1
    return line


def _find_child(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == str(part)), None)
    return None


def list_validation_errors(error: ValidationError) -> list[ErrorDetails]:
    """Return the errors. Omit the error "too short" of a list that contains invalid items.

    This error can be wrong: pydantic does not count the invalid items of the list.
    """
    every = error.errors()
    return [
        detail
        for detail in every
        if not (detail["type"] == "too_short" and any(_is_below(detail, other) for other in every))
    ]


def _is_below(outer: ErrorDetails, inner: ErrorDetails) -> bool:
    size = len(outer["loc"])
    return len(inner["loc"]) > size and inner["loc"][:size] == outer["loc"]


def explain_validation_error(detail: ErrorDetails) -> str:
    """Format an error of pydantic as 'expected …, got …'. Messages of virtcloud's validators remain unchanged."""
    if detail["type"] == "missing":
        return "expected a value, got none"
    if detail["type"] == "extra_forbidden":
        return "unknown key; check its spelling"
    if detail["type"] == "too_short":
        return f"expected at least {detail['ctx']['min_length']} item, got none"
    if detail["type"] in {"tuple_type", "list_type"}:
        example, got = (f" such as [{given!r}]", "the text ") if isinstance(given := detail["input"], str) else ("", "")
        return f"expected a list{example}, got {got}{given!r}"
    message = detail["msg"].removeprefix("Value error, ")
    if message.startswith("expected") or detail["type"] == "value_error":
        return message
    wanted = message.removeprefix("Input should be ").removeprefix("String should have ").partition(", unable to ")[0]
    return f"expected {wanted.replace('String should match', 'a text that matches')}, got {detail['input']!r}"


def format_validation_errors(error: ValidationError, prefix: str = "", root: str = "") -> str:
    """Return one line for each error: ``prefix``, the key, and the explanation.

    ``root`` replaces the key of an error that concerns the whole document.
    """
    return "\n".join(prefix + _format_validation_error(detail, root) for detail in list_validation_errors(error))


def error_path(detail: ErrorDetails) -> str:
    """Return the key that an error concerns, or "" for the whole document. Dots separate nested keys."""
    return ".".join(str(part) for part in fault_path(detail))


def locate_first_fault(error: ValidationError) -> str:
    """Return the key and the message of the first error.

    pydantic's own messages do not quote the value, which may be a secret. Messages of virtcloud's validators quote the
    value.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    key = error_path(first)
    return f"{key}: {first['msg']}" if key else first["msg"]


def _format_validation_error(detail: ErrorDetails, root: str) -> str:
    key = error_path(detail) or root
    return f"{key}: {explain_validation_error(detail)}" if key else explain_validation_error(detail)
