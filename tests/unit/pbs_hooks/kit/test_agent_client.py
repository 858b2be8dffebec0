import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.programs.fake_agent import FakeAnswer, FakeRequest, agent_socket

from pbs_hooks.kit.agent_client import AgentRefused, AgentUnreachable, ask_agent


def unreachable_error(path: Path, *, grace: float = 5.0) -> str:
    with pytest.raises(AgentUnreachable) as caught:
        ask_agent(str(path), {"do": "list"}, grace=grace)
    return str(caught.value)


def test_the_answer_is_a_document(tmp_path: Path) -> None:
    with agent_socket(tmp_path / "s", lambda _: {"ok": True, "gone": True}) as agent:
        assert ask_agent(str(tmp_path / "s"), {"do": "remove", "cluster": "1.pbs"}) == {"ok": True, "gone": True}
        assert agent.asked == [{"do": "remove", "cluster": "1.pbs"}]


def test_a_request_contains_its_time_limit(tmp_path: Path) -> None:
    with agent_socket(tmp_path / "s", lambda _: {"ok": True}) as agent:
        ask_agent(str(tmp_path / "s"), {"do": "state"}, wait=20)
    assert agent.asked == [{"do": "state", "wait": 20}]


def test_a_refusal_has_a_name_and_a_reason(tmp_path: Path) -> None:
    answer = {"ok": False, "error": "gone", "detail": "a later attempt (3) of 1.pbs is known"}
    with agent_socket(tmp_path / "s", lambda _: answer), pytest.raises(AgentRefused, match="a later attempt") as caught:
        ask_agent(str(tmp_path / "s"), {"do": "up"})
    assert caught.value.slug == "gone"


def test_a_stopped_agent_is_unreachable(tmp_path: Path) -> None:
    assert unreachable_error(tmp_path / "s") == (
        f"this host's agent does not answer at {tmp_path}/s: No such file or directory; "
        "check it: systemctl status virtcloud-agent"
    )


def test_an_agent_that_hangs_is_unreachable_after_the_timeout(tmp_path: Path) -> None:
    stop = threading.Event()

    def hang(_: FakeRequest) -> FakeAnswer:
        stop.wait(10)
        return ()

    with agent_socket(tmp_path / "s", hang):
        assert "timed out" in unreachable_error(tmp_path / "s", grace=0.05)
        stop.set()


def test_a_slow_answer_does_not_extend_the_timeout(tmp_path: Path) -> None:
    stop = threading.Event()

    def drip(_: FakeRequest) -> Iterator[bytes]:
        while not stop.wait(0.01):
            yield b" "

    with agent_socket(tmp_path / "s", drip):
        error = unreachable_error(tmp_path / "s", grace=0.1)
        stop.set()
    assert "timed out" in error or "no complete answer" in error


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ([], "ended after 0 bytes"),
        ([b'{"ok": '], "ended after 7 bytes"),
        ([b"hello\n"], "Expecting value"),
        ([b"[1]\n"], "sent an invalid answer: [1]"),
    ],
)
def test_an_invalid_answer_counts_as_no_answer(tmp_path: Path, answer: FakeAnswer, error: str) -> None:
    with agent_socket(tmp_path / "s", lambda _: answer):
        assert error in unreachable_error(tmp_path / "s")
