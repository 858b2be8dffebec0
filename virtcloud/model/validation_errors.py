"""The errors of pydantic as messages of the form "expected …, got …"."""

from pydantic import ValidationError
from pydantic_core import ErrorDetails


def fault_path(detail: ErrorDetails) -> list[str | int]:
    """Return the path of the value that an error concerns."""
    return [*detail["loc"], *getattr(detail.get("ctx", {}).get("error"), "path", ())]


def list_validation_errors(error: ValidationError) -> list[ErrorDetails]:
    """Return the errors.

    Omit the error "too short" of a list that contains invalid items, which pydantic does not count.
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
    wanted = message.removeprefix("Input should be ").removeprefix("String should have ")
    for reason in (", unable to ", ", got "):  # the value that follows shows the reason
        wanted = wanted.partition(reason)[0]
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

    pydantic's own messages do not quote the value, which may be a secret. Messages of virtcloud's validators quote it.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    key = error_path(first)
    return f"{key}: {first['msg']}" if key else first["msg"]


def _format_validation_error(detail: ErrorDetails, root: str) -> str:
    key = error_path(detail) or root
    return f"{key}: {explain_validation_error(detail)}" if key else explain_validation_error(detail)
