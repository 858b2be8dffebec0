import pytest

from virtcloud.agent.job_socket.socket_requests import RunningRequest, StateRequest, UpRequest, parse_socket_request
from virtcloud.model.errors import BadInput


def test_requests_are_parsed_from_json() -> None:
    assert parse_socket_request(b'{"do": "state", "cluster": "12.pbs", "attempt": 3, "wait": 30}') == StateRequest(
        do="state", cluster="12.pbs", attempt=3, wait=30
    )
    assert parse_socket_request(b'{"do": "running", "clusters": [["12.pbs", 3], ["13.pbs", 1]]}') == RunningRequest(
        do="running", clusters=(("12.pbs", 3), ("13.pbs", 1))
    )
    assert parse_socket_request(b'{"do": "up", "cluster": "a", "attempt": 0, "head": false}').head is False
    assert isinstance(
        parse_socket_request(b'{"do": "up", "cluster": "a", "attempt": 0, "head": true, "user": "alice"}'), UpRequest
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "expected one JSON object on one line: Expecting value: line 1 column 1 (char 0)"),
        (b"[]", "expected one JSON object on one line, got list"),
        (b"\xff\xfe", "expected one JSON object on one line: "),
        (b"[" * 100000, "expected one JSON object on one line: "),
        (b'{"do": "fly"}', "do: expected one of up, state, cancel, remove, running, list, got 'fly'"),
        (b'{"do": ["up"]}', "do: expected one of up, state, cancel, remove, running, list, got ['up']"),
        (b"{}", "do: expected one of up, state, cancel, remove, running, list, got None"),
        (b'{"do": "state", "cluster": "A", "attempt": 1}', "cluster: expected a cluster key: lower case, digits"),
        (b'{"do": "state", "cluster": "../x", "attempt": 1}', "cluster: expected a cluster key: lower case, digits"),
        (b'{"do": "state", "cluster": "a"}', "attempt: expected a value, got none"),
        (b'{"do": "state", "cluster": "a", "attempt": "1"}', "attempt: expected a valid integer, got '1'"),
        (b'{"do": "state", "cluster": "a", "attempt": -1}', "attempt: expected greater than or equal to 0, got -1"),
        (
            b'{"do": "state", "cluster": "a", "attempt": 1, "wait": 31}',
            "wait: expected less than or equal to 30, got 31",
        ),
        (b'{"do": "state", "cluster": "a", "attempt": 1, "wait": NaN}', "wait: expected a finite number, got nan"),
        (
            b'{"do": "up", "cluster": "a", "attempt": 1, "head": true}',
            "user: expected the job's user, since head is true; got nothing",
        ),
        (b'{"do": "up", "cluster": "a", "attempt": 1, "head": "yes"}', "head: expected a valid boolean, got 'yes'"),
        (b'{"do": "list", "for": "me"}', "for: unknown key; check its spelling"),
        (b'{"do": "remove", "attempt": 1.5}', "cluster: expected a value, got none; attempt: expected a valid "),
    ],
)
def test_errors_are_described_on_one_line(line: bytes, message: str) -> None:
    with pytest.raises(BadInput) as raised:
        parse_socket_request(line)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
