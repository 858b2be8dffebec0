"""A group that lists each command by its whole first sentence; click cuts off what is longer than a line."""

import click


class Command(click.Command):
    """A command whose short help is the first sentence of its help."""

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002 - click's signature
        """Give the first sentence."""
        return " ".join((self.help or "").split()).partition(". ")[0].rstrip(".") + "."


class Group(click.Group):
    """A group of such commands."""

    command_class = Command
