"""The parser of YAML documents. Each error message starts with the text's name and, if known, the line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from virtcloud.model.document import Document
from virtcloud.model.errors import BadDocument
from virtcloud.model.validation_errors import explain_validation_error, fault_path, list_validation_errors
from virtcloud.model.yaml_loader import UniqueKeyLoader

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
    """Parse a document from YAML or JSON.

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
    """Return " (similar: KEY)" with the known key most similar to an unknown key, or ""."""
    if detail["type"] != "extra_forbidden":
        return ""
    *path, unknown = detail["loc"]
    similar = get_close_matches(str(unknown), sorted(_find_keys(kind, path)), n=1)
    return f" (similar: {similar[0]})" if similar else ""


def _find_keys(kind: object, path: Sequence[str | int]) -> set[str]:
    """Return the keys of the documents at ``path`` within the type ``kind``, such as a tuple of documents."""
    if isinstance(kind, type) and issubclass(kind, Document):
        if not path:
            return set(kind.model_fields)
        field = kind.model_fields.get(str(path[0]))
        return set() if field is None else _find_keys(field.annotation, path[1:])
    rest = path[1:] if get_origin(kind) in {tuple, list, dict} else path
    return {key for inner in get_args(kind) for key in _find_keys(inner, rest)}


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
