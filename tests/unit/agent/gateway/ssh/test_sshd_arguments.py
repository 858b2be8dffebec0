"""Tests of the arguments of a gateway's sshd. The tests replace sshd with programs that imitate its versions."""

from pathlib import Path

import pytest

from virtcloud.agent.gateway import sshd_program

OLD = """\
case "$*" in *PerSourcePenalties*)
  echo "command-line: line 0: Bad configuration option: PerSourcePenalties" >&2; exit 255
esac
"""
"""A program that refuses the option PerSourcePenalties like OpenSSH 9.2."""
INVALID = "echo '/etc/ssh/sshd_config: terminating, 1 bad configuration options' >&2; exit 255\n"


def make_command(folder: Path, script: str) -> list[str]:
    """Write a program that records its arguments, and then runs ``script``. Return a command with this program."""
    program = folder / "sshd"
    program.write_text(f'#!/bin/sh\necho "$*" >>{folder}/calls\n{script}')
    program.chmod(0o755)
    return [str(program), "-D", "-f", "/etc/ssh/sshd_config"]


def test_a_later_sshd_blocks_no_addresses(tmp_path: Path) -> None:
    argv = make_command(tmp_path, "exit 0\n")
    assert sshd_program._choose_arguments(argv) == [*argv, "-o", "PerSourcePenalties=no"]
    assert (tmp_path / "calls").read_text() == "-t -f /etc/ssh/sshd_config -o PerSourcePenalties=no\n"


def test_an_earlier_sshd_starts_without_the_unknown_option(tmp_path: Path) -> None:
    argv = make_command(tmp_path, OLD)
    assert sshd_program._choose_arguments(argv) == argv


@pytest.mark.parametrize("script", [INVALID, OLD + INVALID])
def test_an_invalid_configuration_is_refused_with_sshds_reason(tmp_path: Path, script: str) -> None:
    with pytest.raises(OSError, match="sshd_config: terminating, 1 bad configuration options"):
        sshd_program._choose_arguments(make_command(tmp_path, script))
