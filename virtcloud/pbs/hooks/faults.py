"""The three kinds of faults of a job's start on its hosts, and what becomes of the job: a table."""

from typing import Mapping, NamedTuple, Type

AGAIN = "; the job will be tried again"
HELD = "; the job is held for the administrators"


class Fault(Exception):
    """The job cannot start; the message is one line, for the job's owner."""


class Unwanted(Fault):
    """Its owner does not want it any more, or what was asked for cannot be: trying again is no use."""


class Passing(Fault):
    """It will be otherwise at another time."""


class Surprise(Fault):
    """Nobody thought of it: the job is kept, for people to look at."""


class Fate(NamedTuple):
    """What becomes of the job, and what its owner reads after the reason."""

    delete: bool
    hold: bool
    after: str


FATES: Mapping[Type[Fault], Fate] = {
    Unwanted: Fate(delete=True, hold=False, after=""),
    Passing: Fate(delete=False, hold=False, after=AGAIN),
    Surprise: Fate(delete=False, hold=True, after=HELD),
}
"""A job that is neither deleted nor held is queued again; a hook's plain ``reject`` says just that, but at launch."""
