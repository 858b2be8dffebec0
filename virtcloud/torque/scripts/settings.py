"""What an administrator says to the scripts, in a file of JSON; every key has a default but the address of SBF."""

from collections import OrderedDict
from pathlib import Path
from typing import Mapping, NamedTuple, Optional

from virtcloud.pbs.hooks.service import Where
from virtcloud.pbs.hooks.settings import Key, SettingsError, address, duration, names, path, read_settings, seconds

MOST_PATIENCE_S = 260
"""Torque kills a script ten seconds before its ``$prologalarm`` (300 s); what was asked for is undone before."""


class Settings(NamedTuple):
    """The settings: where SBF and the agent are, and how long a job may take.

    ``patience`` are the seconds that a cluster may take to be there. ``hosts`` gives the elements of hosts that SBF
    calls otherwise than Torque. ``environments`` is the folder of what jobs read.
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
    def where(self) -> Where:
        """Give SBF as it is asked; raises SettingsError without an address."""
        if self.sbf is None:
            raise SettingsError(
                "the settings do not say where SBF is: expected the key sbf, such as https://sbf.example"
            )
        return Where(self.sbf, self.token_file, self.ca_file)

    def element(self, host: str) -> str:
        """Give SBF's name of a host of Torque's: what ``hosts`` says, or else its name up to the first dot."""
        return self.hosts.get(host) or host.partition(".")[0].lower()


def _place(value: object) -> str:
    found = path(value)
    if found is None:
        raise ValueError(value)
    return found


KEYS = OrderedDict(
    [
        (
            "sbf",
            Key(
                "SBF's address: https://host, http://host:port or unix:///path",
                lambda value: None if value is None else address(value),
                None,
                "SBF's address; the submit filter needs none.",
            ),
        ),
        (
            "token_file",
            Key("a path that starts with /, or null", path, "/etc/virtcloud/torque.token", "The host's token."),
        ),
        ("ca_file", Key("a path that starts with /, or null", path, None, "SBF's authority; else the machine's.")),
        ("socket", Key("a path that starts with /", _place, "/run/virtcloud/agent.sock", "The agent's socket.")),
        ("longest_walltime", Key("hours:minutes:seconds", duration, "168:00:00", "Longer jobs get no cluster.")),
        (
            "patience",
            Key(
                "seconds from 1 to %d" % MOST_PATIENCE_S,
                seconds(1, MOST_PATIENCE_S),
                240,
                "How long a cluster may take to be up.",
            ),
        ),
        (
            "hosts",
            Key(
                "an object of Torque's names of hosts and SBF's",
                names,
                {},
                "Hosts that both call by other names; else it is the name up to the first dot.",
            ),
        ),
        (
            "environments",
            Key("a path that starts with /", _place, "/run/virtcloud/torque", "The folder of what jobs read."),
        ),
    ]
)  # type: Mapping[str, Key]


def script_settings(file: str) -> Settings:
    """Read the settings; where there is no file they are the defaults. Raises SettingsError."""
    return Settings(**read_settings(file if Path(file).exists() else None, KEYS, "the scripts'"))
