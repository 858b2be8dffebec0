"""The environment variables that a job's script gets from its cluster.

A job that is submitted with ``qsub -V`` in another job's script inherits the variables of the other job's cluster.
Therefore hooks and scripts remove the variables for which the job's own cluster has no value.
"""

import shlex
from typing import Mapping

SCRIPT_VARIABLES = {
    "VCLUSTER_ID": "the cluster's key",
    "VCLUSTER_NAME": "the cluster's name, if it has a name",
    "VCLUSTER_VLAN": "the cluster's VLAN ID at this host's site",
    "VCLUSTER_GUESTS": "the names of the cluster's guests, separated by spaces",
    "VCLUSTER_HOSTS": "a file in the format of `/etc/hosts`: the guests' addresses and names",
    "VCLUSTER_HOSTFILE": "a file for `mpirun --hostfile`: each guest with its number of processors as slots",
    "VCLUSTER_SSH_CONFIG": "a file for `ssh -F`, with which ssh reaches the guests by their names",
    "VCLUSTER_KNOWN_HOSTS": "a file with the host keys of the guests, in the format of `~/.ssh/known_hosts`",
}
"""The meaning of each variable, by name."""


def render_shell_commands(variables: Mapping[str, str]) -> str:
    """Return shell commands that export the variables and unset all other variables of `SCRIPT_VARIABLES`."""
    missing = sorted(SCRIPT_VARIABLES.keys() - variables.keys())
    unset = "unset %s\n" % " ".join(missing) if missing else ""
    return unset + "".join("export %s=%s\n" % (name, shlex.quote(value)) for name, value in sorted(variables.items()))
