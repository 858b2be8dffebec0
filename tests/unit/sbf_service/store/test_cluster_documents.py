from concurrent.futures import ThreadPoolExecutor

import pytest

from sbf_service.store.clusters import cluster_documents
from sbf_service.store.clusters.cluster_documents import TextCache
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.guest_spec import Guest
from virtcloud.model.values import UserName

CAPACITY = 80


@pytest.fixture
def parsed() -> list[str]:
    """Return the texts that the parser of ``cache`` has parsed."""
    return []


@pytest.fixture
def cache(parsed: list[str]) -> TextCache[str]:
    def parse(text: str) -> str:
        parsed.append(text)
        if text == "bad":
            raise ValueError(text)
        return text.upper()

    return TextCache(parse, CAPACITY)


def test_a_text_is_parsed_once(cache: TextCache[str], parsed: list[str]) -> None:
    assert [cache.parse("abc"), cache.parse("abc")] == ["ABC", "ABC"]
    assert (parsed, cache.length) == (["abc"], 3)


def test_the_texts_that_were_not_used_for_longest_are_removed(cache: TextCache[str], parsed: list[str]) -> None:
    texts = [f"{number:010}" for number in range(8)]
    for text in (*texts, texts[0], "new"):
        cache.parse(text)
    assert cache.length == 73
    parsed.clear()
    for text in (texts[0], "new", *texts[2:], texts[1]):
        cache.parse(text)
    assert parsed == [texts[1]]


def test_a_text_above_an_eighth_of_the_capacity_is_uncached(cache: TextCache[str], parsed: list[str]) -> None:
    for text in ("x" * 10, "y" * 11) * 2:
        cache.parse(text)
    assert ([text[0] for text in parsed], cache.length) == (["x", "y", "y"], 10)


def test_an_error_is_not_cached(cache: TextCache[str], parsed: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            cache.parse("bad")
    assert (parsed, cache.length) == (["bad", "bad"], 0)


def test_concurrent_threads_count_each_text_once(parsed: list[str], cache: TextCache[str]) -> None:
    texts = [str(number % 50) for number in range(2000)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(cache.parse, texts)) == texts
    assert cache.length == sum(map(len, cache._results)) <= CAPACITY
    assert len(parsed) >= 50


def test_the_specs_of_large_clusters_do_not_exceed_the_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parsed spec of 1,000 guests needs megabytes of memory."""
    cache = TextCache(lambda _: ClusterSpec.model_construct(owner=UserName("alice")), cluster_documents.CACHED_SPECS)
    monkeypatch.setattr(cluster_documents, "_parsed_specs", cache)
    guests = tuple(Guest.model_validate({"name": f"g{number}", "host": "h1", "image": "x"}) for number in range(1000))
    text = ClusterSpec.model_validate({"owner": "alice", "guests": guests}).model_dump_json()
    for number in range(200):
        cluster_documents.parse_spec(text.replace("alice", f"alice{number}"))
    assert cluster_documents.CACHED_SPECS - len(text) - 3 < cache.length <= cluster_documents.CACHED_SPECS
