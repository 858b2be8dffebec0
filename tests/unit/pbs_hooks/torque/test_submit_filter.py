import subprocess
import sys
from pathlib import Path

import pytest

from pbs_hooks.torque.scripts.script_entry import main
from pbs_hooks.torque.scripts.script_settings import ScriptSettings, read_script_settings
from pbs_hooks.torque.scripts.submit_filter import filter_submission
from virtcloud.jobs.request_values import RequestError

SCRIPT = "#!/bin/sh\n#PBS -l nodes=2:ppn=4,walltime=1:00:00\nhostname\n"
ENTRY = """
import sys
from pbs_hooks.torque.scripts.script_entry import main
sys.exit(main("submit_filter", sys.argv[2:], {}, sys.argv[1]))
"""
NO_SETTINGS = "/nonexistent/torque.json"


def read_defaults() -> ScriptSettings:
    return read_script_settings(NO_SETTINGS)


def refusal(*arguments: str, script: str = SCRIPT) -> str:
    with pytest.raises(RequestError) as caught:
        filter_submission(arguments, script, read_defaults, {})
    return str(caught.value)


def qsub(script: bytes, *arguments: str, settings: str = NO_SETTINGS) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-c", ENTRY, settings, *arguments]
    return subprocess.run(command, input=script, capture_output=True, check=False)  # noqa: S603 - our own


def test_a_job_without_a_request_passes_unchanged() -> None:
    assert filter_submission(["-l", "mem=1gb"], SCRIPT, read_defaults, {}) == SCRIPT


def test_a_request_on_the_command_line_is_copied() -> None:
    assert filter_submission(["-l", "vcluster=image=a"], SCRIPT, read_defaults, {}) == (
        "#!/bin/sh\n#PBS -l other=vcluster=image=a\n#PBS -l nodes=2:ppn=4,walltime=1:00:00\nhostname\n"
    )


def test_the_filter_is_idempotent() -> None:
    once = filter_submission(["-l", "vcluster=image=a"], SCRIPT, read_defaults, {})
    assert filter_submission(["-l", "vcluster=image=a"], once, read_defaults, {}) == once
    assert filter_submission([], once, read_defaults, {}) == once


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("-l", "vcluster=guests=2"),
            "vcluster: image: expected the name of an image, got none; see 'virtcloud image list'",
        ),
        (("-l", "vcluster=image=a:access=vpn"), "vcluster: 'access' is not supported here (character 9)"),
        (
            ("-l", "vcluster=image=a:services=dns"),
            "vcluster: services: expected dhcp too, because guests find the servers by DHCP, got 'dns' (character 9)",
        ),
        (("-l", "vcluster=image=a", "-t", "1-4"), "vcluster: job arrays are not supported"),
        (("-l", "vcluster=image=a:ncpus=8"), "vcluster: guest needs ncpus=8, the chunk has ncpus=4"),
        (("-l", "vcluster=image=a,walltime=999:0:0"), "vcluster: a walltime is required, at most 168:00:00"),
        (
            ("-l", "vcluster=image=a: mem=1gb"),
            (
                "vcluster: expected a request without spaces, because Torque cuts off a request at the first space, "
                "got 'image=a: mem=1gb'"
            ),
        ),
        (
            ("-l", "vcluster=image=a,other=fast"),
            "vcluster: other: expected no value, because this resource carries the request, got 'fast'",
        ),
    ],
)
def test_an_invalid_request_is_refused(arguments: tuple[str, ...], message: str) -> None:
    assert refusal(*arguments) == message


@pytest.mark.parametrize("space", [" ", "\t", "\n", "\r"])
def test_a_request_with_a_space_is_refused(space: str) -> None:
    assert "expected a request without spaces" in refusal("-l", f"vcluster=image=a:mem=1gb{space}:guests=2")


def test_a_job_may_get_its_walltime_from_the_queue() -> None:
    assert "other=vcluster=image=a" in filter_submission(
        ["-l", "vcluster=image=a"], "#PBS -l nodes=2\n", read_defaults, {}
    )


def test_a_walltime_may_have_days() -> None:
    assert "other=" in filter_submission(["-l", "vcluster=image=a,walltime=6:23:00:00"], SCRIPT, read_defaults, {})
    assert "at most 168:00:00" in refusal("-l", "vcluster=image=a,walltime=8:00:00:00")


@pytest.mark.parametrize(
    ("arguments", "environment", "script"),
    [
        (["-C", "#X", "-l", "vcluster=image=a"], {}, SCRIPT),
        (["-C", "#X"], {}, "#X -l nodes=2 -l vcluster=image=a\n"),
        (["-l", "vcluster=image=a"], {"PBS_DPREFIX": "#X"}, SCRIPT),
    ],
)
def test_other_directive_prefixes_are_refused(arguments: list[str], environment: dict[str, str], script: str) -> None:
    with pytest.raises(
        RequestError, match="omit -C and PBS_DPREFIX: the filter writes the request to a line that begins w"
    ):
        filter_submission(arguments, script, read_defaults, environment)
    assert filter_submission(["-C", "#X"], "#X -l nodes=2\n", read_defaults, environment) == "#X -l nodes=2\n"


def test_a_too_long_request_is_refused() -> None:
    assert refusal("-l", "vcluster=image=a:share=" + "+".join(["bob"] * 400)) == (
        "vcluster: expected at most 1024 characters, the limit of a Torque job, got 1613"
    )


def test_qsub_gets_the_message_and_exit_code() -> None:
    done = qsub(SCRIPT.encode(), "-l", "vcluster=image=a:guests=0")
    assert (done.returncode, done.stdout) == (255, b"")
    assert done.stderr == b"vcluster: guests: expected a number from 1 to 64, got '0' (character 9)\n"


def test_the_filter_preserves_the_bytes_of_a_script(tmp_path: Path) -> None:
    script = b"#!/bin/sh\necho '\xff\xfe \xc5\x99'\r\n\x00"
    assert qsub(script).stdout == script


def test_invalid_settings_reject_only_jobs_with_a_request(tmp_path: Path) -> None:
    (tmp_path / "torque.json").write_text("{")
    settings = str(tmp_path / "torque.json")
    plain = qsub(SCRIPT.encode(), settings=settings)
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, SCRIPT.encode(), b"")
    done = qsub(SCRIPT.encode(), "-l", "vcluster=image=a", settings=settings)
    assert (done.returncode, done.stdout) == (255, b"")
    expected = f"vcluster: the scripts' settings: expected a file with a JSON object, got {settings}: "
    assert done.stderr.decode().startswith(expected)
    assert b"tried again" not in done.stderr


def test_unreadable_settings_reject_a_job_with_a_request(tmp_path: Path) -> None:
    settings = str(tmp_path / ("x" * 300))  # like a folder without permission, not merely missing
    assert qsub(SCRIPT.encode(), settings=settings).stdout == SCRIPT.encode()
    done = qsub(SCRIPT.encode(), "-l", "vcluster=image=a", settings=settings)
    assert (done.returncode, done.stdout) == (255, b"")
    assert "the scripts' settings: expected a file with a JSON object" in done.stderr.decode()


def test_an_internal_error_of_the_filter_rejects_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main("submit_filter", [], {}, NO_SETTINGS) == 255
    assert capsys.readouterr().err.startswith("vcluster: internal error in submit_filter: AttributeError(")
