"""``virtcloud cluster ssh`` and ``virtcloud cluster known-hosts``: logins to guests from anywhere."""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Final, Literal

import click

from virtcloud.cli import printing
from virtcloud.cli.cluster_run import IDENTITY, THROUGH
from virtcloud.cli.groups import SummaryCommand
from virtcloud.cli.options import open_client
from virtcloud.client.guest_commands import start_thread
from virtcloud.client.ssh_arguments import ClusterLogins, SshOptions, find_login_folder, require_ssh
from virtcloud.client.ssh_failures import SSH_FAILED, find_remedy
from virtcloud.model.guest_seed import render_known_hosts

KEPT = 8192
"""Number of bytes of ssh's last messages in which a remedy is searched."""
END_S = 1.0
"""Maximum wait in seconds for a message after ssh ended: a connection to a gateway may keep the stream open."""
PR_SET_PDEATHSIG: Final = 1
PASSED_ON: Final = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
"""Signals that end or suspend ssh, and then this program."""
SIGNALLED = 128
"""Exit code of a shell for a program that a signal ended, without the signal's number."""


@click.command("known-hosts", cls=SummaryCommand)
@click.argument("key")
@printing.json_option
@click.pass_context
def known_hosts(context: click.Context, key: str, as_json: bool) -> None:
    """Print the host keys of the guests in the network of the cluster KEY, as lines for a file known_hosts.

    With these lines, ssh asks no question about a guest's host key, and refuses any other key.

    Example: virtcloud cluster known-hosts demo >> ~/.ssh/known_hosts
    """
    found = open_client(context).sbf.peers(key)
    if as_json:
        printing.print_json(found)
        return
    click.echo(render_known_hosts(found.peers), nl=False)
    if unknown := [peer.name for peer in found.peers if peer.host_key is None]:
        click.echo(
            f"the host keys of {', '.join(unknown)} are not known: an earlier version of SBF created their cluster",
            err=True,
        )


@click.command(cls=SummaryCommand)
@click.argument("key")
@click.argument("guest", required=False)
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--user", "-l", help="The user in the guest.  [default: the user of the cluster's guests]")
@IDENTITY
@click.option(
    "--option", "-o", "options", multiple=True, help="An option for ssh, as in ssh_config(5); may be repeated."
)
@THROUGH
@click.pass_context
def ssh(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context,
    /,
    key: str,
    guest: str | None,
    *,
    command: tuple[str, ...],
    user: str | None,
    identity: str | None,
    options: tuple[str, ...],
    through: Literal["sbf", "gateway"] | None,
) -> None:
    """Log in to GUEST of the cluster KEY with ssh, from anywhere. Without GUEST, log in to the first guest.

    The connection passes a gateway of the cluster, or SBF and the agent of the guest's host. SBF knows the guest's
    host key, so that ssh asks no question. The exit code is the exit code of COMMAND, or 255 if ssh failed. A COMMAND
    needs a GUEST.

    Example: virtcloud cluster ssh demo g2 -- hostname
    """
    client = open_client(context)
    logins = ClusterLogins(client.sbf, key, find_login_folder())
    (login,) = logins.find(SshOptions(user, identity, options, through), [guest]).values()
    client.close()
    sys.exit(_run_ssh([*login, *command]))


def _run_ssh(arguments: Sequence[str]) -> int:
    """Run ssh and return its exit code. If ssh failed, print the remedy. If a signal ended ssh, end likewise."""
    with require_ssh():
        process = subprocess.Popen(  # noqa: S603 - no shell
            arguments,
            stderr=subprocess.PIPE,
            bufsize=0,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - there are no other threads yet
        )
    for number in PASSED_ON:
        signal.signal(number, lambda received, _: _send_signal(process, received))
    messages = bytearray()
    copying = start_thread(_copy_messages, process, process.stderr, messages)
    code = _wait_for_end(process)
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_DFL)
    copying.join()
    if code == SSH_FAILED and (remedy := find_remedy(messages.decode(errors="replace"))):
        click.echo(f"virtcloud: {remedy}", err=True)
    if code < 0:
        os.kill(os.getpid(), -code)  # a shell ends its script if SIGINT ended the program
    return code if code >= 0 else SIGNALLED - code


def _end_with_parent() -> None:
    """Request that the kernel ends ssh if this program is killed with SIGKILL, as by a time limit of a script."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _send_signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to ssh. ``Popen.send_signal`` would take the exit code that ``_wait_for_end`` waits for."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _copy_messages(process: "subprocess.Popen[bytes]", stream: IO[bytes], messages: bytearray) -> None:
    """Copy the standard error of ssh to this program's, and its last bytes to ``messages``."""
    with stream, suppress(OSError):
        while (is_ready := bool(select.select([stream], [], [], END_S)[0])) or process.returncode is None:
            if is_ready:
                data = stream.read(KEPT)
                if not data:
                    return
                sys.stderr.buffer.write(data)
                sys.stderr.buffer.flush()
                messages[:] = (messages + data)[-KEPT:]


def _wait_for_end(process: "subprocess.Popen[bytes]") -> int:
    """Return the exit code of ssh. If ssh is suspended (``~^Z`` in ssh(1)), this program is suspended too."""
    while True:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode
        os.kill(os.getpid(), signal.SIGSTOP)
        _send_signal(process, signal.SIGCONT)
