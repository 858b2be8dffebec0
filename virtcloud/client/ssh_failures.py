"""The reasons why ssh could not start a command in a guest, with remedies. Pure."""

import re
from typing import Final

from virtcloud.model.message_text import printable
from virtcloud.model.ssh_access import ACCOUNT

SSH_FAILED: Final = 255
"""The exit code of ssh for its own errors (ssh(1)). If a command in the guest exits with 255, ssh also exits with
255."""
REMEDIES: Final = {
    "^ssh: (Could not resolve hostname|connect to host)": "this computer does not reach the gateway; connect through "
    "SBF: --through sbf",  # ssh connects only to gateways itself: a proxy command connects to guests
    f"^{ACCOUNT}@.*Permission denied": "expected a certificate that the gateway accepts: a certificate expires after "
    "some minutes, and can be revoked earlier; repeat the command, or connect through SBF: virtcloud cluster ssh "
    "--through sbf",
    "Permission denied": "expected a key that the guest accepts: load your key into the ssh-agent (ssh-add, needed "
    "for a key with a passphrase) or pass it with -i; guests accept the keys that you added before you created the "
    "cluster (virtcloud key list; for later clusters: virtcloud key add)",
    "Host key verification failed": "the guest's host key differs from the host key that SBF knows, or SBF knows no "
    "host key: an image may create its own host keys; if you trust the guest: -o StrictHostKeyChecking=no "
    "-o UserKnownHostsFile=/dev/null",
    "Connection timed out": "the guest's sshd does not answer; read the guest's console: virtcloud guest log",
    "Connection closed by": "the guest's sshd may not have started yet, or refuses connections; read the guest's "
    "console: virtcloud guest log",
}
"""Maps a regular expression for the messages of ssh to the remedy."""


def is_temporary(reason: str | None) -> bool:
    """Return whether a failed login may succeed later. A refused key or a wrong host key will be refused again.

    ``reason`` is the result of :func:`explain_failure`. Return False for None, because then ssh did not fail.
    """
    return reason is not None and not any(text in reason for text in ("Permission denied", "Host key verification"))


def explain_failure(messages: str, code: int | None = SSH_FAILED) -> str:
    """Return the reason why ssh did not start a command, with a remedy.

    ``messages`` is the standard error of ssh, and ``code`` its exit code. Lines with the prefix ``virtcloud:`` come
    from virtcloud's proxy command, and take precedence.
    """
    lines = [printable(line.replace("\r", "")).strip() for line in messages.splitlines()]
    own = [line.removeprefix("virtcloud: ") for line in lines if line.startswith("virtcloud: ")]
    if own:
        return "; ".join(own)
    for pattern, remedy in REMEDIES.items():
        if found := next((line for line in lines if re.search(pattern, line)), None):
            return f"{found.rstrip('.')}; {remedy}"
    last = next((line for line in reversed(lines) if line), None)
    return last or f"ssh ended with exit code {code} before the command started"
