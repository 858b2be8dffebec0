"""PURE. The difference between a document that is in force and one that shall be, as text."""

from collections.abc import Mapping
from difflib import unified_diff
from typing import Any

import yaml

from virtcloud.model.document import Document


def as_yaml(document: Document, **first: object) -> str:
    """Return a document as YAML, with keys of its file first; what is as by default is left out."""
    plain: Mapping[str, Any] = first | document.model_dump(mode="json", exclude_defaults=True)
    return str(yaml.safe_dump(dict(plain), sort_keys=False, allow_unicode=True))


def difference(former: Document | None, wanted: Document, name: str) -> str:
    """Return a unified difference of both as YAML; empty when they are the same."""
    before = "" if former is None else as_yaml(former)
    lines = unified_diff(before.splitlines(), as_yaml(wanted).splitlines(), f"{name} now", f"{name} then", lineterm="")
    return "\n".join(lines)
