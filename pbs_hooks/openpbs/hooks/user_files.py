"""Reads files that users name in requests, in a child process with the user's rights."""

import json
import os
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from pbs_hooks.kit.deadline import ChildError
from pbs_hooks.kit.user_rights import read_regular_file, run_as_user
from virtcloud.jobs.request_values import RequestError

READ_TIMEOUT_S = 1.5
MAX_FILE_BYTES = 64 << 10
MAX_JSON_BYTES = 256 << 10
IMAGE_FILE = "image.yaml"


def read_request_file(path: str, user: str) -> str:
    """Read a request file with the rights of ``user``, and return its content as JSON on one line.

    Raise RequestError if the file cannot be read or parsed.
    """
    try:
        return str(run_as_user(user, lambda: _read_as_json(path), READ_TIMEOUT_S))
    except ChildError as error:
        raise RequestError("spec: expected a file of YAML or JSON, got %s: %s" % (path, error)) from None


def check_images(folder: Optional[str], images: Sequence[str], user: str) -> None:
    """Raise RequestError for images that are not in the image folder or that the user cannot read.

    Raise RequestError after the time limit, too. If ``folder`` is None, check nothing.
    """
    if folder is None or not images:
        return
    try:
        missing, unreadable = run_as_user(user, lambda: _find_unreadable_images(folder, images), READ_TIMEOUT_S)
    except ChildError as error:
        raise RequestError("images cannot be checked for %s: %s; try again" % (user, error)) from None
    for name in missing:
        raise RequestError("image '%s' not found; see 'virtcloud image list'" % name)
    for name in unreadable:
        raise RequestError("image '%s' is not readable by %s" % (name, user))


def _read_as_json(path: str) -> str:
    text = _read_text(path)
    try:
        return _dump_json(_parse_document(text))
    except RecursionError:
        raise ChildError("nested too deep") from None


class _RepeatedKey(ValueError):
    """A JSON object contains a key twice."""


def _parse_document(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_build_object)
    except _RepeatedKey:
        # The YAML parser finds the repeated key, too, and its error contains the position. The text is JSON, and JSON
        # is valid YAML if no tab is between values.
        return _parse_yaml(text.replace("\t", " "))
    except ValueError:
        return _parse_yaml(text)


def _build_object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    built = dict(pairs)
    if len(built) < len(pairs):
        raise _RepeatedKey
    return built


def _dump_json(document: Any) -> str:
    """Return a document as JSON on one line.

    Raise ChildError for more than ``MAX_JSON_BYTES`` bytes, because YAML aliases can expand a small file to a very
    large document.
    """
    text = ""
    for part in json.JSONEncoder(separators=(",", ":")).iterencode(document):
        text += part
        if len(text) > MAX_JSON_BYTES:
            raise ChildError("more than %d bytes after expansion" % MAX_JSON_BYTES)
    return text


def _read_text(path: str) -> str:
    try:
        return read_regular_file(path, MAX_FILE_BYTES).decode()
    except OSError as error:
        raise ChildError(error.strerror) from None
    except UnicodeDecodeError:
        raise ChildError("not UTF-8 text") from None


def _parse_yaml(text: str) -> Any:
    from yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415 - the import takes a tenth of a second, and few jobs need it
    from yaml.loader import BaseLoader  # noqa: PLC0415

    loader = BaseLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _check_unique_keys(root, set())
        return loader.construct_document(root)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = "line %d, column %d: " % (mark.line + 1, mark.column + 1) if mark else ""
        raise ChildError("%s%s" % (where, error.problem)) from None
    except YAMLError as error:
        raise ChildError(" ".join(str(error).split())) from None
    except (ValueError, OverflowError):
        raise ChildError("an escape code above 0010FFFF") from None


def _check_unique_keys(node: Any, checked: Set[int]) -> None:
    """Raise ChildError if a mapping contains a key twice: the parsed document would contain only the last value."""
    if node.id == "scalar" or id(node) in checked:
        return
    checked.add(id(node))
    children = node.value
    if node.id == "mapping":
        _check_keys(key for key, _ in node.value if key.id == "scalar")
        children = [value for _, value in node.value]
    for child in children:
        _check_unique_keys(child, checked)


def _check_keys(keys: Iterable[Any]) -> None:
    lines: Dict[str, int] = {}
    for key in keys:
        line, column = key.start_mark.line + 1, key.start_mark.column + 1
        if key.value in lines:
            problem = "expected each key once, got %r again, first in line %d" % (key.value[:100], lines[key.value])
            raise ChildError("line %d, column %d: %s" % (line, column, problem))
        lines[key.value] = line


def _find_unreadable_images(folder: str, images: Sequence[str]) -> List[List[str]]:
    os.stat(folder)
    paths = {name: os.path.join(folder, name) for name in images}
    unread = [name for name, path in paths.items() if not os.access(os.path.join(path, IMAGE_FILE), os.R_OK)]
    missing = [name for name in unread if os.access(folder, os.X_OK) and not os.path.lexists(paths[name])]
    return [missing, [name for name in unread if name not in missing]]
