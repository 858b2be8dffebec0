"""What is kept from look to look so that it can be told: alerts with their beginning, the last deeds."""

from collections import deque
from collections.abc import Iterable
from datetime import datetime

from virtcloud.model.values import ClusterKey
from virtcloud.scheduler.alerts import Alert, AlertName
from virtcloud.scheduler.ports import Log
from virtcloud.scheduler.status import KEPT, AlertView, Deed


class Journal:
    """Tells each alert once when it begins and once when it is over."""

    def __init__(self, log: Log) -> None:
        """Begin with nothing to tell."""
        self._log = log
        self._since: dict[tuple[AlertName, str], AlertView] = {}
        self._deeds: deque[Deed] = deque(maxlen=KEPT)

    @property
    def alerts(self) -> tuple[AlertView, ...]:
        """What is wrong now."""
        return tuple(self._since.values())

    @property
    def deeds(self) -> tuple[Deed, ...]:
        """What was done last, oldest first."""
        return tuple(self._deeds)

    def tell(self, alerts: Iterable[Alert], at: datetime) -> None:
        """Say what is wrong now; what was wrong before and is not any more is over."""
        now = {(one.name, one.about): one for one in alerts}
        for key in [one for one in self._since if one not in now]:
            over = self._since.pop(key)
            self._log.info("alert_over", alert=over.name, about=over.about)
        for key, one in now.items():
            if key not in self._since:
                self._log.warning("alert", alert=one.name, about=one.about, text=one.text)
            since = self._since[key].since if key in self._since else at
            self._since[key] = AlertView(name=one.name, about=one.about, text=one.text, since=since)

    def done(self, what: str, key: ClusterKey, attempt: int, why: str, at: datetime) -> None:
        """Keep what was done to a cluster."""
        self._log.info(f"cluster_{what}", cluster=key, attempt=attempt, why=why)
        self._deeds.append(Deed(at=at, what=what, cluster=key, attempt=attempt, why=why))
