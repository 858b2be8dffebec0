"""The chapter of the demonstration about VPN access: a laptop joins a cluster's network until the lease ends."""

import time

from virtcloud.client.vpn_profile import make_device_key, render_profile
from virtcloud.lab.addressing import LAPTOP
from virtcloud.lab.demo.context import NETWORK, DemoContext
from virtcloud.lab.laptop import CONNECTED, LaptopVpn
from virtcloud.model.cluster import ENDED_STATES, ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.guest_seed import render_known_hosts
from virtcloud.model.guest_spec import Guest
from virtcloud.model.views import ClusterView
from virtcloud.model.vpn import VpnProfileRequest

OWNER = "alice"
TWIN, KEY = "demo-twin", "demo-vpn"
POLL_S = 0.2
LEASE_S, TWIN_LEASE_S, SET_UP_S = 30.0, 600.0, 60.0
GUEST, FILE = f"{NETWORK}1", "/etc/virtcloud/hostfile"
CUT_OFF, ENDED = "Halt command was pushed by server", "process exiting"


def join_from_laptop(context: DemoContext) -> None:
    """Create two identical clusters, join one of them from the laptop, and wait for the end of this cluster's lease."""
    report = context.report
    gateways = [name for name, gateway in context.topology.gateways.items() if gateway.vpn]
    with report.chapter(f"A laptop joins one of two identical clusters through {' and '.join(gateways)}"):
        twin, view = _create_cluster(context, TWIN, TWIN_LEASE_S), _create_cluster(context, KEY, LEASE_S)
        report.check(
            f"{TWIN} and {KEY} are active; each has a guest with the address {GUEST}",
            twin.state is view.state is ClusterState.ACTIVE,
            f"{twin.state}: {twin.reason}; {view.state}: {view.reason}",
        )
        laptop = LaptopVpn(context.lab, "demo")
        laptop.connect(_make_profile(context))
        report.check(f"{LAPTOP}$ openvpn --config demo.ovpn: {CONNECTED}", laptop.logs(CONNECTED), laptop.log)
        context.client.extend_lease(KEY, LEASE_S)
        _copy_file(context, laptop)
        _wait_for_end(context, laptop)
        laptop.disconnect()
        context.client.delete_cluster(TWIN)
        for key in (TWIN, KEY):
            context.follow(context.client.cluster(key), lambda current: current.state in ENDED_STATES, SET_UP_S)


def _create_cluster(context: DemoContext, key: str, lease_s: float) -> ClusterView:
    host = context.first_hosts()[0]
    guest = Guest(name="n1", host=host, image="busybox-ssh", memory_mb=64, addresses=(f"{GUEST}/24",))
    spec = ClusterSpec(owner=OWNER, guests=(guest,), deadline_s=SET_UP_S, lease_s=lease_s, vpn=True)
    view = context.client.put_cluster(key, ClusterRequest(spec=spec))
    waiting = {ClusterState.REQUESTED, ClusterState.CONFIGURING}
    return context.follow(view, lambda current: current.state not in waiting, SET_UP_S)


def _make_profile(context: DemoContext) -> str:
    device_key = make_device_key()
    profile = context.client.create_profile(KEY, VpnProfileRequest(device=LAPTOP, csr=device_key.csr))
    context.report.print_line(f"virtcloud access profile {KEY} --output demo.ovpn: {' and '.join(profile.addresses)}")
    deadline = time.monotonic() + SET_UP_S
    while context.client.profile(KEY, profile.id).pending and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return render_profile(profile, device_key.private)


def _copy_file(context: DemoContext, laptop: LaptopVpn) -> None:
    lab = context.lab
    known_hosts = render_known_hosts(context.client.peers(KEY).peers)
    for name, text in (("known_hosts", known_hosts), ("key", (lab.state.folder / "keys/user").read_text())):
        lab.run(LAPTOP, ("sh", "-c", f"umask 077; cat >/run/vpn/{name}"), stdin=text, check=True)
    options = (
        "-F",
        "none",
        "-i",
        "/run/vpn/key",
        "-o",
        "UserKnownHostsFile=/run/vpn/known_hosts",
        "-o",
        "BatchMode=yes",
        "-o",
        "ConnectionAttempts=10",  # one attempt per second, because the guest's sshd may still be starting
    )
    code, output = laptop.run("scp", "-O", "-q", *options, f"{OWNER}@{GUEST}:{FILE}", "/run/vpn/copied")
    context.report.check(
        f"{LAPTOP}$ scp {OWNER}@{GUEST}:{FILE} .: the host key belongs to a guest of {KEY}", not code, output
    )


def _wait_for_end(context: DemoContext, laptop: LaptopVpn) -> None:
    report = context.report
    ping = ("ping", "-c", "1", "-W", "2", GUEST)
    report.check(f"{LAPTOP} reaches {GUEST} before the lease of {KEY} ends", laptop.run(*ping)[0] == 0)
    is_cut_off = laptop.logs(CUT_OFF, SET_UP_S) and laptop.logs(ENDED)
    report.check(f"{LAPTOP} is cut off when the lease ends", is_cut_off, laptop.log)
    report.check(f"{LAPTOP} does not reach {GUEST} any more", laptop.run(*ping)[0] != 0)
