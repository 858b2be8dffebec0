"""The type of the fixture ``run``, which runs the command line against a service in memory."""

from collections.abc import Callable

from click.testing import Result

RunCommand = Callable[..., Result]
