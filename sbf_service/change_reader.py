"""The change reader: a thread in which a replica reads the changes of other replicas from the database.

On PostgreSQL, the thread receives notices, and publishes their topics in the change feed. A slow poll also compares the
versions in the database with the versions that the waiting calls (long polls) have read. The slow poll finds changes
whose notices were lost. The slow poll also runs after each new connection, because notices between two connections are
lost.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread

from sbf_service.change_feed import ChangeFeed
from sbf_service.log import get_log
from sbf_service.store.store import Store
from sbf_service.store.transactions.change_notices import Doorbell, NoticeListener, listen_for_notices
from sbf_service.store.transactions.topic_versions import Versions, find_outdated_topics
from sbf_service.store.users.tokens import TOKENS_TOPIC
from virtcloud.model.errors import DatabaseUnavailable

SLOW_POLL_S = 15.0
"""The interval of the slow poll: the longest delay of a change whose notice was lost."""
RECONNECT_S = 2.0
"""The pause before the next attempt to connect to the database, in seconds."""
STOP_TIMEOUT_S = 1.0
log = get_log(__name__)


@dataclass
class ChangeReader:
    """Reads the changes of other replicas, in one thread.

    ``before_poll`` runs before each slow poll, and may read versions from the database. ``omit_current`` returns its
    argument without the topics whose version ``before_poll`` has already read.
    """

    store: Store
    feed: ChangeFeed
    before_poll: Callable[[], None] = lambda: None
    omit_current: Callable[[Versions], Versions] = lambda versions: versions
    interval: float = SLOW_POLL_S
    clock: Callable[[], float] = time.monotonic
    listens: bool = False
    """Whether this replica receives the notices of other replicas. True on SQLite, which has only one replica."""
    _doorbell: Doorbell | None = None
    _revoked_tokens: int | None = None
    _stopping: bool = False
    _thread: Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._doorbell = Doorbell()
        self._thread = Thread(target=self._run, args=(self._doorbell,), name="change-reader", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Wait at most a second for its end."""
        self._stopping = True
        if self._thread is None or self._doorbell is None:
            return
        self._doorbell.ring()
        self._thread.join(STOP_TIMEOUT_S)
        if not self._thread.is_alive():
            self._doorbell.close()
            self._doorbell = None

    def poll_once(self) -> None:
        """Publish each topic whose version differs from the version that a waiting call has read.

        Also publish the topic of revoked tokens if its version has changed since the previous poll.
        """
        self.before_poll()
        known = {**self.omit_current(self.feed.list_versions()), TOKENS_TOPIC: self._revoked_tokens}
        with self.store.read() as unit:
            outdated = find_outdated_topics(unit, known)
        self._revoked_tokens = outdated.get(TOKENS_TOPIC, self._revoked_tokens)
        if outdated:
            self.feed.publish_outdated(outdated)

    def _run(self, doorbell: Doorbell) -> None:
        while not self._stopping:
            try:
                self._follow_once(doorbell)
            except Exception as error:  # noqa: BLE001 - a lost connection causes various errors of the driver
                log.warning("change_notices_lost", cause=" ".join(str(error).split()))
                doorbell.wait(RECONNECT_S)

    def _follow_once(self, doorbell: Doorbell) -> None:
        try:
            with self._listen() as listener:
                self._follow(listener, doorbell)
        finally:
            self.listens = False

    @contextmanager
    def _listen(self) -> Iterator[NoticeListener | None]:
        if self.store.engine.dialect.name != "postgresql":
            yield None
            return
        with listen_for_notices(self.store.engine, self.store.name) as listener:
            yield listener

    def _follow(self, listener: NoticeListener | None, doorbell: Doorbell) -> None:
        next_poll = self.clock()
        while not self._stopping:
            if self.clock() >= next_poll:
                if self._poll(listener):  # the poll also finds changes that preceded this connection
                    self.listens = True
                next_poll = self.clock() + self.interval
            if listener is None:
                doorbell.wait(next_poll - self.clock())
                continue
            for notice in listener.wait(next_poll - self.clock(), doorbell):
                if notice.topics is None:
                    self.feed.wake_all()
                    next_poll = self.clock()  # the poll publishes the changed topics to the feed's listeners
                else:
                    self.feed.publish_remote(notice.topics)

    def _poll(self, listener: NoticeListener | None) -> bool:
        """Run the slow poll. Return whether the slow poll succeeded.

        Raise an error of the database driver if the connection is lost.
        """
        if listener is not None:
            listener.check()
        try:
            self.poll_once()
        except DatabaseUnavailable:
            log.warning("waiting_for_database")
        except Exception as error:  # noqa: BLE001 - an error in one poll must not end the thread
            log.fault("slow_poll_fault", error)
        else:
            return True
        return False
