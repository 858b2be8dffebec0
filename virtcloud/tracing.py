"""Spans of traces. Without an installed tracer, a span costs one comparison, and no library is loaded.

``virtcloud/otlp_tracing.py`` installs a tracer if the settings name a collector. The tracer is global to the process,
because the code of all layers begins spans.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class Span(Protocol):
    """An operation with a beginning and an end. If an exception leaves the span's context, the span has failed."""

    def describe(self, name: str | None = None, **attributes: str | int) -> None:
        """Change the name, and add attributes."""


class Tracer(Protocol):
    """Creates spans and knows the current span of the thread or task."""

    def span(
        self, name: str, parent: str | None, links: Sequence[str], attributes: dict[str, str | int]
    ) -> AbstractContextManager[Span]:
        """Return a context manager for a span. ``parent`` and ``links`` are trace contexts (``traceparent``)."""

    def traceparent(self) -> str | None:
        """Return the trace context of the current span, or None without a span."""


class _NoSpan:
    """A span that records nothing. The span may be entered any number of times."""

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_error: object) -> None:
        return

    def describe(self, name: str | None = None, **attributes: str | int) -> None:
        """Do nothing."""


NO_SPAN = _NoSpan()
_installed: list[Tracer] = []


def install_tracer(tracer: Tracer | None) -> None:
    """Set the tracer of this process. None removes the tracer."""
    _installed[:] = [] if tracer is None else [tracer]


def span(
    name: str, *, parent: str | None = None, links: Sequence[str] = (), **attributes: str | int
) -> AbstractContextManager[Span]:
    """Return a context manager for a span.

    If ``parent`` is None, the span is a child of the current span. If there is no current span either, the span begins
    a new trace.
    """
    if not _installed:
        return NO_SPAN
    return _installed[0].span(name, parent, links, attributes)


def child_span(name: str, **attributes: str | int) -> AbstractContextManager[Span]:
    """Return a context manager for a child of the current span. Without a current span, nothing is recorded."""
    if not _installed or _installed[0].traceparent() is None:
        return NO_SPAN
    return _installed[0].span(name, None, (), attributes)


def span_of_calls(name: str, traceparents: Sequence[str], **attributes: str | int) -> AbstractContextManager[Span]:
    """Return a context manager for the span of an operation that one or more calls caused.

    ``traceparents`` are the trace contexts of the calls. For one call, the span is a child of the call's span. For
    several calls, the span begins a new trace with a link to each call. Without calls, the span is a child of the
    current span.
    """
    if not traceparents:
        return child_span(name, **attributes)
    if not _installed:
        return NO_SPAN
    if len(traceparents) == 1:
        return _installed[0].span(name, traceparents[0], (), attributes)
    return _installed[0].span(name, None, traceparents, attributes)


def current_traceparent() -> str | None:
    """Return the trace context of the current span, or None without a span."""
    return _installed[0].traceparent() if _installed else None
