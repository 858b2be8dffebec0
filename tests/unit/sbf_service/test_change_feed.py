"""Tests of the change feed: the waiters that a topic wakes, and the versions of topics that the waiters have read.

Notices of other replicas can be lost, so a slow poll compares these versions with the database.
"""

import asyncio
from collections.abc import Awaitable, Callable

from sbf_service.change_feed import ChangeFeed


def run(calls: Callable[[ChangeFeed], Awaitable[None]]) -> None:
    feed = ChangeFeed()
    asyncio.run(calls(feed))  # type: ignore[arg-type]
    assert feed.count_waiters() == 0


def test_a_topic_wakes_only_its_waiters() -> None:
    async def act(feed: ChangeFeed) -> None:
        with feed.watch("element:a") as first, feed.watch("element:b") as second:
            feed.publish(frozenset({"element:a"}))
            assert await first.wait(10)
            assert not await second.wait(0)

    run(act)


def test_the_waiters_of_a_topic_are_counted() -> None:
    async def act(feed: ChangeFeed) -> None:
        with feed.watch("element:a"), feed.watch(uncompared=("element:b",)):
            counts = [feed.count_waiters(topic) for topic in ("element:b", "element:c", None)]
            assert counts == [1, 0, 2]

    run(act)


def test_a_change_before_the_wait_is_not_lost() -> None:
    async def act(feed: ChangeFeed) -> None:
        with feed.watch("element:a") as waiter:
            feed.publish(frozenset({"element:a"}))
            await asyncio.sleep(0)
            assert await waiter.wait(0)
            assert not await waiter.wait(0)

    run(act)


def test_the_lowest_version_of_a_topic_is_compared() -> None:
    async def act(feed: ChangeFeed) -> None:
        with feed.watch("element:a") as first, feed.watch("element:a") as second:
            assert feed.list_versions() == {"element:a": None}
            first.versions["element:a"], second.versions["element:a"] = 3, 2
            assert feed.list_versions() == {"element:a": 2}
            feed.publish_outdated({"element:a": 4})
            assert feed.list_versions() == {"element:a": 4}
            assert await first.wait(10)
            assert await second.wait(10)

    run(act)


def test_topics_without_compared_versions_also_wake_waiters() -> None:
    async def act(feed: ChangeFeed) -> None:
        with feed.watch("element:a", uncompared=("token:t",)) as waiter:
            assert feed.list_versions() == {"element:a": None}
            feed.publish_remote(frozenset({"token:t"}))
            assert await waiter.wait(10)

    run(act)


def test_remote_changes_reach_only_remote_listeners() -> None:
    feed, local, remote = ChangeFeed(), list[frozenset[str]](), list[frozenset[str]]()
    feed.add_listener(local.append)
    feed.add_listener(remote.append, remote=True)
    feed.publish_remote(frozenset({"tokens"}))
    assert (local, remote) == ([], [frozenset({"tokens"})])


def test_a_closed_loop_does_not_prevent_other_wakes() -> None:
    feed = ChangeFeed()
    left = []

    async def leave() -> None:
        left.append(feed.watch("element:a"))
        left[0].__enter__()

    async def wake() -> bool:
        with feed.watch("element:a") as waiter:
            feed.publish(frozenset({"element:a"}))
            return await waiter.wait(10)

    asyncio.run(leave())
    assert feed.count_waiters() == 1
    assert asyncio.run(wake())
