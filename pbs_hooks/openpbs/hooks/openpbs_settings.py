"""Settings of the server hook and of the MoM hook."""

from collections import OrderedDict
from typing import Mapping, NamedTuple, Optional

from pbs_hooks.kit.hook_settings import (
    USER_KEYS_SETTING,
    SettingKey,
    read_address,
    read_duration,
    read_names,
    read_optional_path,
    read_path,
    read_settings,
    seconds_between,
)


class ServerSettings(NamedTuple):
    """Settings of the server hook; times are in seconds."""

    sbf: str
    token_file: Optional[str]
    ca_file: Optional[str]
    longest_walltime: int
    images: Optional[str]
    timeout: float
    breaker: float
    retry_after: int
    setup: int
    hosts: Mapping[str, str]
    user_keys: bool


class MomSettings(NamedTuple):
    """Settings of the MoM hook; times are in seconds."""

    socket: str
    patience: float
    removal: float


_HOST_NAMES = "an object that maps PBS's host names to SBF's host names"
HOSTS_SETTING = SettingKey(
    _HOST_NAMES,
    read_names,
    {},
    "SBF's names of hosts that PBS names differently; default: PBS's name up to the first dot.",
)
UNUSED_HOSTS_SETTING = SettingKey(
    _HOST_NAMES,
    read_names,
    {},
    "No effect: only the server's hook translates names of hosts. Installed settings may contain this key.",
)
_PATH = "a path that starts with /, or null"
SERVER_SETTINGS = OrderedDict(
    [
        (
            "sbf",
            SettingKey(
                "SBF's address: https://host, http://host:port or unix:///path",
                read_address,
                None,
                "The address of SBF.",
            ),
        ),
        (
            "token_file",
            SettingKey(
                _PATH,
                read_optional_path,
                "/etc/virtcloud/pbs.token",
                "File with the token (role scheduler) with which the hook calls SBF; readable by root.",
            ),
        ),
        (
            "ca_file",
            SettingKey(
                _PATH, read_optional_path, None, "File with the CA of SBF's certificate; null: the system's CAs."
            ),
        ),
        (
            "longest_walltime",
            SettingKey(
                "hours:minutes:seconds", read_duration, "168:00:00", "The longest walltime of a job with a cluster."
            ),
        ),
        (
            "images",
            SettingKey(
                "a folder that starts with /, or null",
                read_optional_path,
                None,
                "Folder in which the hook looks for the requested images at submission; null: no check.",
            ),
        ),
        (
            "timeout",
            SettingKey(
                "seconds from 0.1 to 2", seconds_between(0.1, 2), 2.0, "Time limit of all calls of one event together."
            ),
        ),
        (
            "breaker",
            SettingKey(
                "seconds from 1 to 3600",
                seconds_between(1, 3600),
                60,
                "After a timeout or another slow failure of a call, the hook makes no call for this time.",
            ),
        ),
        (
            "retry_after",
            SettingKey(
                "seconds from 1 to 86400",
                seconds_between(1, 86400),
                120,
                "Delay before the scheduler again tries to start a job that could not start.",
            ),
        ),
        (
            "setup",
            SettingKey(
                "seconds from 30 to 3600",
                seconds_between(30, 3600),
                600,
                "The hook adds this time to the cluster's lease. The cluster must become active within three "
                "quarters of this time, and within 510 s.",
            ),
        ),
        ("hosts", HOSTS_SETTING),
        ("user_keys", USER_KEYS_SETTING),
    ]
)  # type: Mapping[str, SettingKey]
MOM_SETTINGS = OrderedDict(
    [
        (
            "socket",
            SettingKey(
                "a path that starts with /",
                read_path,
                "/run/virtcloud/agent.sock",
                "The job socket of the host's agent.",
            ),
        ),
        (
            "patience",
            SettingKey(
                "seconds from 1 to 570, below the hook's alarm",
                seconds_between(1, 570),
                540,
                "Time limit of the first host's wait for the cluster.",
            ),
        ),
        (
            "removal",
            SettingKey(
                "seconds from 0 to 570, below the hook's alarm",
                seconds_between(0, 570),
                30,
                "Time limit at a job's end for the removal of the cluster from a host. After this time, the job ends "
                "even if the removal is not complete.",
            ),
        ),
        ("hosts", UNUSED_HOSTS_SETTING),
    ]
)  # type: Mapping[str, SettingKey]


def read_server_settings(file: Optional[str]) -> ServerSettings:
    """Read the settings of the server hook. Raise the errors of `read_settings`."""
    return ServerSettings(**read_settings(file, SERVER_SETTINGS))


def read_mom_settings(file: Optional[str]) -> MomSettings:
    """Read the settings of the MoM hook, and ignore ``hosts``. Raise the errors of `read_settings`."""
    values = read_settings(file, MOM_SETTINGS)
    return MomSettings(values["socket"], values["patience"], values["removal"])
