"""After a wait in vain SBF is not asked for a while: a service that is down costs the batch system one wait a minute.

It is kept in the environment of the server's process: that outlives its Python interpreter, which PBS starts anew
every hundred hooks (``python_restart_max_hooks``). When the server itself starts anew, one more wait is paid.
"""

import os
import time

NAME = "VIRTCLOUD_SBF_ASK_AGAIN"
COSTLY = 0.25
"""What takes more than this part of the time allowed was a wait; a connection refused at once costs nothing."""


def closed_for() -> float:
    """Give the seconds for which SBF is not to be asked, 0 when it may be."""
    try:
        return max(0.0, float(os.environ.get(NAME, "0")) - time.monotonic())
    except ValueError:
        return 0.0


def waited_in_vain(spent: float, allowed: float, pause: float) -> None:
    """Note a call that got no answer; after a costly one SBF is left alone for ``pause`` seconds."""
    if spent > allowed * COSTLY:
        os.environ[NAME] = "%.3f" % (time.monotonic() + pause)
