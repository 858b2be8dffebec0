"""What a job reads of its cluster: Torque gives a prologue no way to a job's environment, so it is a file to source.

``. /run/virtcloud/torque/$PBS_JOBID`` in the job's script. The folder is root's, and the file the user's alone.
"""

import os
import pwd
import shlex
from pathlib import Path
from typing import Dict

from virtcloud.torque.scripts.call import SCHEDULERS, Call

PASSABLE, READABLE = 0o711, 0o400


def ensure_environment(folder: str, call: Call, facts: Dict[str, str]) -> None:
    """Write the facts, and the network's number under its old name, too; raises OSError, and KeyError for no user."""
    place = _place(folder, call)
    if not place.parent.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.parent.chmod(PASSABLE)
    new = place.with_name(".new-" + place.name)
    if new.exists():
        new.unlink()
    account = pwd.getpwnam(call.user)
    told = dict(facts, **{SCHEDULERS: facts["VCLUSTER_VLAN"]}) if "VCLUSTER_VLAN" in facts else facts
    with os.fdopen(os.open(str(new), os.O_WRONLY | os.O_CREAT | os.O_EXCL, READABLE), "w") as file:
        file.writelines("export %s=%s\n" % (name, shlex.quote(value)) for name, value in sorted(told.items()))
        os.fchown(file.fileno(), account.pw_uid, account.pw_gid)
    new.rename(place)


def ensure_no_environment(folder: str, call: Call) -> None:
    """Remove it; nothing there is success."""
    try:
        _place(folder, call).unlink()
    except FileNotFoundError:
        return


def _place(folder: str, call: Call) -> Path:
    return Path(folder) / call.job
