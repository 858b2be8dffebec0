import pytest

from virtcloud.client.guest_commands import GuestResult, make_command, require_success
from virtcloud.client.ssh_failures import explain_failure
from virtcloud.model.errors import BadInput, GuestsFailed


def test_only_a_sequence_is_quoted_for_the_shell() -> None:
    assert make_command(["echo", "a b", "$HOME"]).line == "echo 'a b' '$HOME'"
    assert make_command("echo $HOME").line == "echo $HOME"


@pytest.mark.parametrize("line", ["", "  ", "a\0b"])
def test_an_empty_command_or_nul_is_bad_input(line: str) -> None:
    with pytest.raises(BadInput, match="expected a command for the guests' shell"):
        make_command(line)


def test_a_command_that_linux_would_refuse_is_bad_input() -> None:
    with pytest.raises(BadInput, match="the command has 100001 bytes, and the limit is 100000; copy a script"):
        make_command("x" * 100_001)


def test_the_proxys_own_message_is_the_reason() -> None:
    said = "virtcloud: guest g1 of cluster demo is stopped: start it\nConnection closed by UNKNOWN port 65535\n"
    assert explain_failure(said) == "guest g1 of cluster demo is stopped: start it"


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("eva@g1: Permission denied (publickey).", "ssh-add"),
        ("virtcloud@gw.example.org: Permission denied (publickey).", "expected a certificate that the gateway accepts"),
        ("@@@\r\nHost key verification failed.\r\n", "StrictHostKeyChecking=no"),
        ("Connection timed out during banner exchange", "virtcloud guest log"),
        ("Connection closed by UNKNOWN port 65535", "virtcloud guest log"),
        (
            "ssh: Could not resolve hostname gw: Name or service not known\nConnection closed by UNKNOWN",
            "--through sbf",
        ),
        ("ssh: connect to host gw port 2222: Connection timed out", "--through sbf"),
    ],
)
def test_a_failed_login_has_a_remedy(message: str, remedy: str) -> None:
    assert remedy in explain_failure(message)


def test_a_full_stop_before_the_remedy_is_removed() -> None:
    assert explain_failure("eva@g1: Permission denied (publickey).").startswith(
        "eva@g1: Permission denied (publickey); expected a key that the guest accepts: "
    )


def test_an_unknown_message_is_shown_without_control_characters() -> None:
    assert explain_failure("first\nlast \x1b[31mred\n\n") == "last \ufffd[31mred"
    assert explain_failure("", -9) == "ssh ended with exit code -9 before the command started"


def test_failed_guests_are_listed_with_their_reasons() -> None:
    results = {
        "g1": GuestResult("g1", 0, b"", b"", 1),
        "g2": GuestResult("g2", 3, b"", b"", 1),
        "g3": GuestResult("g3", None, b"", b"", 1, "guest g3 is stopped"),
    }
    with pytest.raises(GuestsFailed) as raised:
        require_success(results)
    assert str(raised.value) == "the command failed on 2 of 3 guests:\ng2: exit code 3\ng3: guest g3 is stopped"
    assert raised.value.failures == {"g2": "exit code 3", "g3": "guest g3 is stopped"}
