"""Tests of the interpreter's settings during work on large documents.

A turn is the longest time that a thread holds the interpreter while another thread waits. A collection is a run of the
garbage collector.
"""

import gc
import sys
from collections.abc import Iterator

import pytest

from sbf_service.large_documents import LARGE, SHORT_TURN_S, collect_later, take_short_turns


@pytest.fixture
def usual_turn_s() -> Iterator[float]:
    usual = sys.getswitchinterval()
    yield usual
    assert sys.getswitchinterval() == usual


def test_turns_are_short_until_the_last_thread_ends(usual_turn_s: float) -> None:
    with take_short_turns():
        with take_short_turns():
            pass
        assert sys.getswitchinterval() == pytest.approx(SHORT_TURN_S)
    assert sys.getswitchinterval() == usual_turn_s


def test_turns_are_usual_after_an_error(usual_turn_s: float) -> None:
    with pytest.raises(KeyError), take_short_turns():
        raise KeyError
    assert sys.getswitchinterval() == usual_turn_s


def test_only_a_large_document_delays_collections() -> None:
    with collect_later(LARGE - 1):
        assert gc.isenabled()
    with collect_later(LARGE):
        assert not gc.isenabled()
    assert gc.isenabled()


def test_later_collections_skip_the_objects_of_a_large_document() -> None:
    before = gc.get_freeze_count()
    with collect_later(LARGE):
        kept = [[number] for number in range(1000)]
    assert gc.get_freeze_count() >= before + len(kept)
