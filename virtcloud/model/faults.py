"""What pydantic finds wrong, in our words: 'expected …, got …'."""

from pydantic import ValidationError
from pydantic_core import ErrorDetails


def faults(error: ValidationError) -> list[ErrorDetails]:
    """Return the faults that are causes: without lists that are too short only because their items are at fault."""
    every = error.errors()
    return [one for one in every if not (one["type"] == "too_short" and any(_below(one, other) for other in every))]


def _below(outer: ErrorDetails, inner: ErrorDetails) -> bool:
    size = len(outer["loc"])
    return len(inner["loc"]) > size and inner["loc"][:size] == outer["loc"]


def explain(detail: ErrorDetails) -> str:
    """Format one fault that pydantic found as 'expected …, got …' or as the model's own sentence."""
    if detail["type"] == "missing":
        return "expected this key, got nothing"
    if detail["type"] == "extra_forbidden":
        return "expected no such key; is it misspelt?"
    if detail["type"] == "too_short":
        return f"expected at least {detail['ctx']['min_length']} item, got none"
    if detail["type"] in {"tuple_type", "list_type"} and isinstance(detail["input"], str):
        return f"expected a list such as [{detail['input']!r}], got the text {detail['input']!r}"
    words = detail["msg"].removeprefix("Value error, ")
    if words.startswith("expected") or detail["type"] == "value_error":
        return words
    return f"expected {words.removeprefix('Input should be ')}, got {detail['input']!r}"


def sentences(error: ValidationError) -> str:
    """Return every fault on a line of its own, after the key that it concerns."""
    return "\n".join(_sentence(one) for one in faults(error))


def _sentence(one: ErrorDetails) -> str:
    where = ".".join(map(str, one["loc"]))
    return f"{where}: {explain(one)}" if where else explain(one)
