"""Reading YAML into documents, with errors that say file, line, key, what was expected and what was found."""

from collections.abc import Sequence
from typing import TypeVar

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from virtcloud.model.document import Document
from virtcloud.model.errors import BadDocument
from virtcloud.model.faults import explain, faults

D = TypeVar("D", bound=Document)


def read_document(text: str, source: str, kind: type[D]) -> D:
    """Read a document from YAML (of which JSON is a part).

    ``source`` is what the message calls the text, a file name mostly. Raises :class:`BadDocument` that lists every
    fault as ``source:line: key: expected …, got …``.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadDocument(_syntax_message(source, error)) from error
    if not isinstance(data, dict):
        raise BadDocument(f"{source}:1: expected a mapping with the keys {_keys(kind)}, got {type(data).__name__}")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise BadDocument("\n".join(_message(source, root, one) for one in faults(error))) from error


def _syntax_message(source: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark else 1
    return f"{source}:{line}: not YAML: {getattr(error, 'problem', None) or error}"


def _keys(kind: type[Document]) -> str:
    return ", ".join(kind.model_fields)


def _message(source: str, root: yaml.Node | None, detail: ErrorDetails) -> str:
    path = [*detail["loc"], *getattr(detail.get("ctx", {}).get("error"), "path", ())]
    where = ".".join(str(part) for part in path) or "document"
    return f"{source}:{_line(root, path)}: {where}: {explain(detail)}"


def _line(node: yaml.Node | None, path: Sequence[str | int]) -> int:
    """Find the line (from 1) of the deepest node on ``path``; a key's own line, where its value stands below it."""
    if node is None:
        return 1
    line, rest = int(node.start_mark.line) + 1, list(path)
    while rest and (found := _child(node, rest.pop(0))):
        key, node = found
        line = int(key.start_mark.line) + 1
    return line


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """Give the node that stands for ``part`` and the one that holds its value."""
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == str(part)), None)
    return None
