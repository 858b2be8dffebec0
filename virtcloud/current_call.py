"""The call for which the current thread or task works: a call to SBF that SBF serves, or that caused an agent's work.

Logs and audit rows contain the call's request ID. Programs send the request ID with their own calls to SBF.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from virtcloud.model.call_context import CallContext, join_calls

_CURRENT: ContextVar[CallContext | None] = ContextVar("virtcloud_call", default=None)


def current_call() -> CallContext | None:
    """Return the context of the current call, or None if there is no current call."""
    return _CURRENT.get()


def current_request_id() -> str | None:
    """Return the request ID of the current call, or None if there is no current call."""
    call = _CURRENT.get()
    return call.request_id if call else None


def continue_for(calls: Sequence[CallContext]) -> None:
    """Combine ``calls`` into one current call, until the end of the surrounding :func:`work_for`.

    Logs and audit rows of the combined call contain all request IDs of ``calls``. If ``calls`` is empty, do nothing.
    """
    if (call := join_calls(calls)) is not None:
        _CURRENT.set(call)


@contextmanager
def work_for(call: CallContext | None) -> Iterator[None]:
    """Set the current call to ``call`` during the ``with`` block. If ``call`` is None, the block works for no call."""
    token = _CURRENT.set(call)
    try:
        yield
    finally:
        _CURRENT.reset(token)
