"""The arguments of ssh for guests.

ssh reaches a guest through SBF and the host's agent, through a gateway, or through the relay of a job. The program is
OpenSSH's client, with the user's configuration, ssh-agent and hardware keys.
"""

import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from virtcloud.client.credentials import (
    FileToken,
    no_token,
    read_default_token,
    replace_private_file,
)
from virtcloud.client.gateway_logins import (
    KNOWN_HOSTS,
    RENEWAL_PAUSE_S,
    compute_renewal,
    create_folder,
    find_reachable_access,
    make_login_folder,
    make_proxy_arguments,
    request_login_files,
)
from virtcloud.client.sbf import SbfClient
from virtcloud.model.errors import BadInput, NoAddressFree, NotFound, VirtcloudError
from virtcloud.model.guest_seed import ClusterPeers, Peer, render_known_hosts
from virtcloud.model.ssh_access import SshCertificateView

SERVER_ALIVE_S = 60
"""Interval in seconds of ssh's messages on an idle connection. Without these messages, SBF would end the session."""


@dataclass(frozen=True, slots=True)
class SshOptions:
    """The user's options: the user in the guest, a file with a private key, and options of ssh_config(5)."""

    user: str | None = None
    identity: str | Path | None = None
    options: tuple[str, ...] = ()
    through: Literal["sbf", "gateway"] | None = None
    """How ssh reaches the guests. With None, ssh uses a gateway of the cluster if a gateway is reachable, otherwise
    SBF."""


DEFAULT_OPTIONS = SshOptions()
SshArguments = Sequence[str]
"""The program ssh with its arguments for one guest. A command for the guest may follow."""


def choose_guest(found: ClusterPeers, names: Sequence[str], name: str | None) -> Peer:
    """Return the guest ``name``, or the first guest of the cluster ``found.key`` if ``name`` is None. Pure.

    If several clusters of the network have a guest with this name, prefer the guest of the cluster ``found.key``, whose
    guests are ``names``. Raise NotFound for an unknown guest. Raise BadInput if ``name`` is None and the cluster
    ``found.key`` has no guests.
    """
    if name is None and not names:
        raise BadInput(f"cluster {found.key} has no guests to log in to")
    wanted = names[0] if name is None else name
    own_first = sorted(found.peers, key=lambda peer: peer.cluster != found.key)
    peer = next((peer for peer in own_first if peer.name == wanted), None)
    if peer is None:
        known = ", ".join(peer.name for peer in found.peers) or "none"
        raise NotFound(f"cluster {found.key} has no guest {wanted or repr(wanted)}; its guests: {known}")
    return peer


def build_ssh_arguments(options: SshOptions, peer: Peer, proxy: Sequence[str], known_hosts: Path) -> list[str]:
    """Return the arguments of ssh. Pure.

    The user's options are first, because ssh uses the first value of each option (ssh_config(5)). If the guest's host
    key is not known, ssh asks the user to confirm the key. ssh must not share a connection (``ControlPath``), because a
    guest of another cluster may have the same name.
    """
    proxy_command = shlex.join(proxy).replace("%", "%%")
    own = [
        f"ProxyCommand={proxy_command} %p",
        f"HostKeyAlias={peer.name}",
        f"ServerAliveInterval={SERVER_ALIVE_S}",
        "ControlPath=none",
    ]
    if peer.host_key is not None:
        quoted = str(known_hosts).replace("%", "%%")
        own += [f'UserKnownHostsFile="{quoted}"', "GlobalKnownHostsFile=none", "StrictHostKeyChecking=yes"]
    return [*_user_arguments(options), *_words(own), *_login(options), peer.name]


def build_job_arguments(options: SshOptions, config: str, guest: str) -> list[str]:
    """Return the arguments of ssh in the script of a job. ``config`` is the job's ssh configuration. Pure."""
    return [*_user_arguments(options), "-F", config, *_login(options), guest]


def _user_arguments(options: SshOptions) -> list[str]:
    return ["ssh", *(["-i", str(options.identity)] if options.identity else []), *_words(options.options)]


def _login(options: SshOptions) -> list[str]:
    return ["-l", options.user] if options.user else []


def _words(options: Sequence[str]) -> list[str]:
    return [word for option in options for word in ("-o", option)]


def proxy_arguments(sbf: SbfClient, peer: Peer, folder: Path) -> list[str]:
    """Return the command that connects its standard input and output with a port of the guest. ssh appends the port.

    Write a token that is not in a file to a private file in ``folder``. With ``-P``, Python imports no module from the
    user's current folder.
    """
    values = {
        "--url": sbf.url,
        "--token-file": _find_token_file(sbf, folder),
        "--ca-file": sbf.trust.ca_file,
        "--certificate": sbf.trust.certificate,
    }
    options = [word for name, value in values.items() if value is not None for word in (name, str(value))]
    return [sys.executable, "-P", "-m", "virtcloud.cli", *options, "guest", "connect", peer.cluster, peer.name]


def _find_token_file(sbf: SbfClient, folder: Path) -> Path | None:
    source = sbf.token
    if isinstance(source, FileToken):
        return source.path
    if source in {no_token, read_default_token} or (token := source()) is None:
        return None
    replace_private_file(folder / "token", token.get_secret_value())
    return folder / "token"


def write_known_hosts(found: ClusterPeers, cluster_id: str, folder: Path) -> Path:
    """Write the host keys of a cluster's network to a private file in ``folder``. Return the file's path."""
    path = folder / f"known_hosts-{cluster_id}"
    replace_private_file(path, render_known_hosts(found.peers))
    return path


def find_job_guests(key: str, environment: Mapping[str, str]) -> tuple[str, list[str]] | None:
    """Return the path of a job's ssh configuration, and the names of the job's guests. ``key`` is the job's key.

    Return None outside the job's script, or if the job has ended.
    """
    config = environment.get("VCLUSTER_SSH_CONFIG", "")
    if environment.get("VCLUSTER_ID") != key or not os.access(config, os.R_OK):
        return None
    return config, environment.get("VCLUSTER_GUESTS", "").split()


class GatewayLogins(Mapping[str, SshArguments]):
    """The arguments of ssh through a gateway, by the guest's name. Thread-safe.

    Reading an item requests a new certificate if the present certificate ends soon. After a failed request, the present
    certificate is used until its end. Later, reading an item raises the errors of the request. Each certificate has a
    separate folder, because running ssh processes may still read the files of an earlier certificate.
    """

    def __init__(
        self,
        request: Callable[[Path], SshCertificateView],
        folder: Path,
        options: SshOptions,
        names: Sequence[str | None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Request the first certificate. ``request`` writes the files of a login to a new folder.

        ``folder`` is the folder of the first certificate, and contains the folders of later certificates. ``names`` are
        as in `ClusterLogins.find`, whose errors this method raises.
        """
        self._request = request
        self._root = folder
        self._options = options
        self._clock = clock
        self._lock = threading.Lock()
        self._renewals = 0
        self._renew(folder)
        guests = [peer.name for peer in self._found.peers if peer.cluster == self._found.key]
        self._names = dict.fromkeys(choose_guest(self._found, guests, name).name for name in names or guests or [None])

    def __getitem__(self, name: str) -> SshArguments:
        """Return the arguments for one login that starts now. Raise KeyError for a name that was not requested."""
        if name not in self._names:
            raise KeyError(name)
        with self._lock:
            if self._clock() >= self._renew_at:
                self._try_to_renew()
            found, gateways, folder = self._found, self._gateways, self._folder
        login = replace(self._options, user=self._options.user or found.user)
        proxy = make_proxy_arguments(gateways, folder, name)
        return build_ssh_arguments(login, choose_guest(found, (), name), proxy, folder / KNOWN_HOSTS)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the guests."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return the number of guests."""
        return len(self._names)

    def _try_to_renew(self) -> None:
        try:
            self._renew(self._root / f"renewal-{self._renewals + 1}")
        except VirtcloudError:
            if self._clock() >= self._expires_at:
                raise
            self._renew_at = min(self._expires_at, self._clock() + timedelta(seconds=RENEWAL_PAUSE_S))
        else:
            self._renewals += 1

    def _renew(self, folder: Path) -> None:
        certificate = self._request(folder)
        self._found = ClusterPeers(key=certificate.cluster, user=certificate.guest_user, peers=certificate.peers)
        self._gateways, self._folder = certificate.gateways, folder
        self._expires_at = certificate.expires_at
        self._renew_at = compute_renewal(self._clock(), certificate.expires_at)


class ClusterLogins:
    """Finds the arguments of ssh for the guests of one cluster.

    ``folder`` is a private folder for known host keys. The environment variable ``variable`` names its parent.

    :meth:`find` reads the cluster from SBF, except in the script of the cluster's job.
    """

    def __init__(
        self, sbf: SbfClient, key: str, folder: Path, cluster_id: str | None = None, *, variable: str = "TMPDIR"
    ) -> None:
        """Prepare logins to the cluster with this key."""
        self._remedy = f"set {variable} to a folder that you can write"
        self._sbf = sbf
        self._key = key
        self._folder = folder
        self._cluster_id = cluster_id

    def find(self, options: SshOptions, names: Sequence[str | None]) -> Mapping[str, SshArguments]:
        """Return the arguments for each guest of ``names``, by the guest's name.

        Read the arguments from the result again before each start of ssh: the arguments for logins through a gateway
        change (`GatewayLogins`). None in ``names`` means the first guest. If ``names`` is empty, return the arguments
        for all guests. Raise NotFound for an unknown guest. Raise BadInput if ``names`` is empty or contains None, and
        the cluster has no guests. Also raise BadInput if the folder is needed and cannot be written.
        """
        job = find_job_guests(self._key, os.environ)
        return self._find_in_job(options, names, *job) if job else self._find_by_sbf(options, names)

    def _find_in_job(
        self, options: SshOptions, names: Sequence[str | None], config: str, guests: Sequence[str]
    ) -> dict[str, SshArguments]:
        peers = [{"name": name, "cluster": self._key} for name in guests]
        found = ClusterPeers.model_validate({"key": self._key, "peers": peers})
        chosen = [choose_guest(found, guests, name).name for name in names or guests or [None]]
        return {name: build_job_arguments(options, config, name) for name in chosen}

    def _find_by_sbf(self, options: SshOptions, names: Sequence[str | None]) -> Mapping[str, SshArguments]:
        create_folder(self._folder, self._remedy)
        if options.through == "gateway":
            return self._find_by_gateway(options, names, self._cluster_id)
        view = self._sbf.cluster(self._key, cluster_id=self._cluster_id)
        if options.through is None and find_reachable_access(self._sbf, self._key, view.id):
            with suppress(NoAddressFree):  # no gateway gets an address in the network: continue through SBF
                return self._find_by_gateway(options, names, view.id)
        found = self._sbf.peers(self._key, view.id)
        guests = [guest.name for guest in view.spec.guests]
        peers = [choose_guest(found, guests, name) for name in names or guests or [None]]
        known_hosts = write_known_hosts(found, view.id, self._folder)
        login = SshOptions(options.user or found.user, options.identity, options.options)
        build = partial(build_ssh_arguments, login, known_hosts=known_hosts)
        return {peer.name: build(peer, proxy_arguments(self._sbf, peer, self._folder)) for peer in peers}

    def _find_by_gateway(
        self, options: SshOptions, names: Sequence[str | None], cluster_id: str | None
    ) -> Mapping[str, SshArguments]:
        request = partial(request_login_files, self._sbf, self._key, cluster_id=cluster_id)
        return GatewayLogins(request, make_login_folder(self._folder), options, names)


@contextmanager
def require_ssh() -> Iterator[None]:
    """Raise BadInput, with the remedy, if the block raises FileNotFoundError because ssh is not installed."""
    try:
        yield
    except FileNotFoundError as error:
        raise BadInput(
            "expected the program ssh on this machine, found none: apt-get install openssh-client"
        ) from error


@contextmanager
def open_logins(sbf: SbfClient, key: str, cluster_id: str | None = None) -> Iterator[ClusterLogins]:
    """Yield logins whose private folder is removed at the end of the block."""
    with TemporaryDirectory(prefix="virtcloud-ssh-") as folder:
        yield ClusterLogins(sbf, key, Path(folder), cluster_id)
