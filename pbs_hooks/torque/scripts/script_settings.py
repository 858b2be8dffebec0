"""Settings of the scripts: a JSON file in which every key except SBF's address has a default."""

from collections import OrderedDict
from typing import Mapping, NamedTuple, Optional

from pbs_hooks.kit.hook_settings import (
    USER_KEYS_SETTING,
    SettingKey,
    SettingsError,
    read_address,
    read_duration,
    read_names,
    read_optional_path,
    read_path,
    read_settings,
    seconds_between,
)
from pbs_hooks.kit.sbf_client import SbfAddress
from virtcloud.jobs.host_names import element_of_host

MAX_PATIENCE_S = 260
"""Maximum of the setting ``patience`` in seconds.

Torque kills a script ten seconds before ``$prologalarm`` (300 s). After ``patience``, the script needs time to withdraw
its request.
"""


class ScriptSettings(NamedTuple):
    """The settings of the scripts.

    ``patience``: the seconds within which a cluster must be up. ``hosts`` maps Torque's name of a host to SBF's name,
    if the names differ. ``environments``: the folder of the files from which jobs' scripts read the variables of their
    clusters. ``user_keys``: whether the keys in the user's home folder may log in to guests.
    """

    sbf: Optional[str]
    token_file: Optional[str]
    ca_file: Optional[str]
    socket: str
    longest_walltime: int
    patience: float
    hosts: Mapping[str, str]
    environments: str
    user_keys: bool

    @property
    def where(self) -> SbfAddress:
        """Return the address of SBF. Raise SettingsError if the address is not set."""
        if self.sbf is None:
            raise SettingsError(
                "the scripts' setting sbf: expected SBF's address, such as https://sbf.example, got none"
            )
        return SbfAddress(self.sbf, self.token_file, self.ca_file)

    def element(self, host: str) -> str:
        """Return SBF's name of a Torque host: from ``hosts``, or the name up to the first dot."""
        return element_of_host(host, self.hosts)


SCRIPT_SETTINGS = OrderedDict(
    [
        (
            "sbf",
            SettingKey(
                "SBF's address: https://host, http://host:port or unix:///path",
                lambda value: None if value is None else read_address(value),
                None,
                "The address of SBF; not needed by the submit filter.",
            ),
        ),
        (
            "token_file",
            SettingKey(
                "a path that starts with /, or null",
                read_optional_path,
                "/etc/virtcloud/torque.token",
                "File with the host's token.",
            ),
        ),
        (
            "ca_file",
            SettingKey(
                "a path that starts with /, or null",
                read_optional_path,
                None,
                "File with the CA of SBF's certificate; null: the system's CAs.",
            ),
        ),
        (
            "socket",
            SettingKey(
                "a path that starts with /", read_path, "/run/virtcloud/agent.sock", "The job socket of the agent."
            ),
        ),
        (
            "longest_walltime",
            SettingKey(
                "hours:minutes:seconds", read_duration, "168:00:00", "The longest walltime of a job with a cluster."
            ),
        ),
        (
            "patience",
            SettingKey(
                "seconds from 1 to %d" % MAX_PATIENCE_S,
                seconds_between(1, MAX_PATIENCE_S),
                240,
                "Time limit for a cluster to become active.",
            ),
        ),
        (
            "hosts",
            SettingKey(
                "an object that maps Torque's host names to SBF's host names",
                read_names,
                {},
                "SBF's names of hosts that Torque names differently; default: Torque's name up to the first dot.",
            ),
        ),
        (
            "environments",
            SettingKey(
                "a path that starts with /",
                read_path,
                "/run/virtcloud/torque",
                "Folder of the files with the variables of jobs.",
            ),
        ),
        ("user_keys", USER_KEYS_SETTING),
    ]
)  # type: Mapping[str, SettingKey]


def read_script_settings(file: str) -> ScriptSettings:
    """Return the settings in ``file``, or the defaults if the file is missing.

    Raise SettingsError if the file cannot be read, or if a setting is invalid.
    """
    return ScriptSettings(**read_settings(file, SCRIPT_SETTINGS, "the scripts'", required=False))
