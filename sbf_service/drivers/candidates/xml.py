"""Answers in XML."""

from typing import Any

from sbf_service.drivers.dialects.reading import beginning


def parsed(text: str) -> Any:  # noqa: ANN401 - lxml has no types
    """Read XML, without following anything that it refers to; raises ValueError with its beginning."""
    from lxml import etree  # noqa: PLC0415 - slow to load, and only for who has such a device

    try:
        return etree.fromstring(text.encode(), etree.XMLParser(resolve_entities=False))
    except etree.XMLSyntaxError as error:
        raise ValueError(beginning(text)) from error


def said_in(element: Any) -> str:  # noqa: ANN401
    """Give all text of an element on one line."""
    return " ".join("".join(element.itertext()).split())
