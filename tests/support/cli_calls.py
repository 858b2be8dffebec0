"""The type of the fixture ``run``, and the arguments of the command that creates a cluster."""

from collections.abc import Callable

from click.testing import Result

RunCommand = Callable[..., Result]
"""The fixture ``run`` runs a command with a fake SBF in memory."""
CREATE = ("cluster", "create", "demo", "--host", "brno-h1", "--owner", "eva", "--image", "busybox")
