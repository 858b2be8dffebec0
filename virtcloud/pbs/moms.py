"""PURE. What can be told about the MoMs from the server's host: copies of hooks, and their hosts' agents."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from virtcloud.model.element import ElementKind
from virtcloud.model.views import ElementView

SILENT_AFTER = timedelta(minutes=3)
"""An agent asks SBF at least once a minute."""
DONE = "0"


def without_copy(tracking: str, hook: str) -> list[str]:
    """Give the hosts that the server has yet to send the newest copy of a hook.

    ``tracking`` is the server's list of them: a line ``host:port hook action number`` for each sending, action 0 when
    it was done; the last line of a host counts.
    """
    last = {
        words[0].rpartition(":")[0]: words[2]
        for words in map(str.split, tracking.splitlines())
        if len(words) == 4 and words[1] == hook  # noqa: PLR2004 - as above
    }
    return sorted(host for host, action in last.items() if action != DONE)


def element_of(host: str, names: Mapping[str, str]) -> str:
    """Give SBF's name of a host, by the hooks' setting ``hosts`` or as PBS's name up to the first dot."""
    return names.get(host, host.partition(".")[0].lower())


def troubles(
    hosts: Iterable[str], names: Mapping[str, str], elements: Iterable[ElementView], now: datetime
) -> Iterator[tuple[str, str]]:
    """Give each host of PBS with which something is wrong, and what."""
    known = {str(one.name): one for one in elements if one.kind is ElementKind.HOST}
    for host in hosts:
        one = known.get(element_of(host, names))
        if one is None:
            yield host, f"SBF has no host {element_of(host, names)}: jobs with a cluster cannot run there"
        elif one.last_seen is None:
            yield host, "its agent has never asked SBF: is 'virtcloud agent' installed and started there?"
        elif now - one.last_seen > SILENT_AFTER:
            yield host, f"its agent has been silent since {one.last_seen:%Y-%m-%d %H:%M:%S} UTC: look at its log there"
        elif one.trouble:
            yield host, f"its agent says: {one.trouble}"
