"""Settings of the scripts: a JSON file in which every key except SBF's address has a default."""

from collections import OrderedDict
from pathlib import Path
from typing import Mapping, NamedTuple, Optional

from pbs_hooks.kit.hook_settings import (
    SettingKey,
    SettingsError,
    read_address,
    read_duration,
    read_names,
    read_optional_path,
    read_settings,
    seconds_between,
)
from pbs_hooks.kit.sbf_client import SbfAddress
from virtcloud.jobs.host_names import element_of_host

MAX_PATIENCE_S = 260
"""Torque kills a script ten seconds before its ``$prologalarm`` (300 s); before that the script withdraws its request.
"""


class ScriptSettings(NamedTuple):
    """The addresses of SBF and of the agent, and time limits.

    ``patience``: seconds that a cluster may take to be up. ``hosts``: SBF's names of hosts that Torque names
    differently. ``environments``: the folder of the files that jobs source.
    """

    sbf: Optional[str]
    token_file: Optional[str]
    ca_file: Optional[str]
    socket: str
    longest_walltime: int
    patience: float
    hosts: Mapping[str, str]
    environments: str

    @property
    def where(self) -> SbfAddress:
        """Return the address of SBF. Raises SettingsError if it is not set."""
        if self.sbf is None:
            raise SettingsError(
                "the settings do not say where SBF is: expected the key sbf, such as https://sbf.example"
            )
        return SbfAddress(self.sbf, self.token_file, self.ca_file)

    def element(self, host: str) -> str:
        """Return SBF's name of a Torque host: from ``hosts``, or the name up to the first dot."""
        return element_of_host(host, self.hosts)


def _read_path(value: object) -> str:
    found = read_optional_path(value)
    if found is None:
        raise ValueError(value)
    return found


SCRIPT_SETTINGS = OrderedDict(
    [
        (
            "sbf",
            SettingKey(
                "SBF's address: https://host, http://host:port or unix:///path",
                lambda value: None if value is None else read_address(value),
                None,
                "SBF's address; the submit filter needs none.",
            ),
        ),
        (
            "token_file",
            SettingKey(
                "a path that starts with /, or null",
                read_optional_path,
                "/etc/virtcloud/torque.token",
                "The host's token.",
            ),
        ),
        (
            "ca_file",
            SettingKey(
                "a path that starts with /, or null", read_optional_path, None, "SBF's authority; else the machine's."
            ),
        ),
        (
            "socket",
            SettingKey("a path that starts with /", _read_path, "/run/virtcloud/agent.sock", "The agent's socket."),
        ),
        (
            "longest_walltime",
            SettingKey("hours:minutes:seconds", read_duration, "168:00:00", "Longer jobs get no cluster."),
        ),
        (
            "patience",
            SettingKey(
                "seconds from 1 to %d" % MAX_PATIENCE_S,
                seconds_between(1, MAX_PATIENCE_S),
                240,
                "How long a cluster may take to be up.",
            ),
        ),
        (
            "hosts",
            SettingKey(
                "an object of Torque's names of hosts and SBF's",
                read_names,
                {},
                "Hosts that both call by other names; else it is the name up to the first dot.",
            ),
        ),
        (
            "environments",
            SettingKey(
                "a path that starts with /", _read_path, "/run/virtcloud/torque", "The folder of what jobs read."
            ),
        ),
    ]
)  # type: Mapping[str, SettingKey]


def read_script_settings(file: str) -> ScriptSettings:
    """Read the settings; without a file, return the defaults. Raises SettingsError."""
    return ScriptSettings(**read_settings(file if Path(file).exists() else None, SCRIPT_SETTINGS, "the scripts'"))
