"""Parses the hosts of a job in the notations of OpenPBS and Torque, and finds SBF's names of the hosts.

The MoM hook loads this module at every event. Therefore this module imports few modules.
"""

from collections import OrderedDict
from typing import Iterable, Mapping, Tuple


def element_of_host(host: str, names: Mapping[str, str]) -> str:
    """Return SBF's name of a host or vnode (``n1[0]``).

    ``names``, from the settings, maps hosts to SBF's names. If ``names`` lacks the host, SBF's name is the host name up
    to the first dot, in lower case.
    """
    bare = host.partition("[")[0]
    return names.get(host) or names.get(bare) or bare.partition(".")[0].lower()


def parse_exec_vnode(text: str) -> Tuple[str, ...]:
    """Return the vnodes of OpenPBS's ``(n1:ncpus=4)+(n2:ncpus=4)``, in order and without duplicates.

    A host can have several vnodes, such as ``n1[0]`` and ``n1[1]``.
    """
    return _unique(part.strip("() ").partition(":")[0] for part in text.split("+"))


def parse_exec_host(text: str) -> Tuple[str, ...]:
    """Return the hosts of Torque's ``n1/0+n1/1+n2/0-3``, in order and without duplicates."""
    return _unique(part.partition("/")[0] for part in text.split("+"))


def parse_nodefile(text: str) -> Tuple[str, ...]:
    """Return the hosts of a ``PBS_NODEFILE`` (one line for each processor), in order and without duplicates."""
    return _unique(line.strip() for line in text.splitlines())


def _unique(names: Iterable[str]) -> Tuple[str, ...]:
    return tuple(OrderedDict.fromkeys(name for name in names if name))
