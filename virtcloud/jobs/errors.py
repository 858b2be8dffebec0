"""What is wrong with a job's request, in words for the user who submitted it."""


class RequestError(Exception):
    """A request that cannot be granted as it is; the message is one line and starts with ``vcluster:``."""

    def __init__(self, text: str) -> None:
        """Say what is wrong, what was expected, what was seen."""
        super().__init__("vcluster: " + text)
