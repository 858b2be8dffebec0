"""Asynchronous methods that are made from the methods of synchronous objects, with the same names and signatures.

The attribute ``sync`` of an asynchronous object is its synchronous object. The methods of ``sync`` run in the threads
of the attribute ``threads``.
"""

import inspect
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from virtcloud.client.call_threads import CallThreads, run_waiting

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W")


def asynchronous(
    method: Callable[Concatenate[Any, P], R], dispose: Callable[[R], object] | None = None
) -> Callable[Concatenate[Any, P], Awaitable[R]]:
    """Return a coroutine function that runs ``method`` of the synchronous object in a thread.

    If the task is cancelled, ``dispose`` is called with the result.
    """
    signature = inspect.signature(method)

    @wraps(method)
    async def call(wrapper: Any, /, *args: P.args, **keys: P.kwargs) -> R:  # noqa: ANN401 - an asynchronous object
        bound, threads = signature.bind(wrapper.sync, *args, **keys), _threads_of(wrapper)
        if "progress" in signature.parameters:
            return await run_waiting(threads, method, bound)
        return await threads.run(partial(method, *bound.args, **bound.kwargs), dispose)

    return call


def asynchronous_wrapped(
    method: Callable[Concatenate[Any, P], R],
    wrap: Callable[[Any, R], W],
    dispose: Callable[[R], object] | None = None,
) -> Callable[Concatenate[Any, P], Awaitable[W]]:
    """Return a coroutine function that runs ``method`` in a thread, and returns ``wrap(wrapper, result)``.

    ``wrapper`` is the asynchronous object. If the task is cancelled, ``dispose`` is called with the result.
    """
    called = asynchronous(method, dispose)

    @wraps(method)
    async def call(wrapper: Any, /, *args: P.args, **keys: P.kwargs) -> W:  # noqa: ANN401 - an asynchronous object
        return wrap(wrapper, await called(wrapper, *args, **keys))

    return call


def return_self(wrapper: W, _result: object) -> W:
    """Return the asynchronous object, for methods that return their object."""
    return wrapper


def _threads_of(wrapper: Any) -> CallThreads:  # noqa: ANN401 - an asynchronous object
    found: CallThreads = wrapper.threads
    return found


def read_property(sync: object, name: str) -> object:
    """Return a public property of a synchronous object. Raise AttributeError for private names and for methods.

    A method could block the event loop.
    """
    if name.startswith("_") or callable(getattr(type(sync), name, None)):
        raise AttributeError(name)
    return getattr(sync, name)
