"""Chapter: a switch is cut off half-way through a creation, and all returns to what was before."""

from concurrent.futures import ThreadPoolExecutor

from virtcloud.lab.demo.frames import ping
from virtcloud.lab.demo.stage import NETWORK, Stage
from virtcloud.lab.observe import snapshot, switch_names, switch_vlans
from virtcloud.model.cluster import State
from virtcloud.model.views import ClusterView, Progress

DEADLINE_S = 6.0
LIMIT_S = 60.0


def cut_off(stage: Stage) -> None:
    """Cut the second site's switch off, ask for a cluster, and watch it fail without a trace."""
    report, lab = stage.report, stage.lab
    first, victim = switch_names(stage.topology)[:2]
    with report.chapter(f"A creation fails: {victim} is cut off half-way"), ThreadPoolExecutor() as pool:
        before = snapshot(lab, stage.topology)
        steady = stage.clusters["demo-a"]
        pinging = pool.submit(ping, stage, steady, 0, f"{NETWORK}3", "-i", "0.5", "-w", "10", "-q")
        lab.run(victim, ("ip", "link", "set", "mgmt0", "down"), check=True)
        report.say(f"{victim}'s management port is down; demo-c is asked for, to be up within {DEADLINE_S:.0f} s")
        view = stage.request("demo-c", DEADLINE_S)
        view = stage.follow(view, lambda seen: _confirmed(seen, first) or seen.state is State.FAILING, LIMIT_S)
        number = view.vlans[stage.topology.site_of[first].name]
        carried = [port for port, vlans in switch_vlans(lab, first).items() if str(number) in vlans]
        report.claim(f"half-way: {first} carries VLAN {number} on {', '.join(carried)} already", bool(carried))
        view = stage.follow(view, lambda seen: seen.state in {State.FAILING, State.FAILED, State.ACTIVE}, LIMIT_S)
        report.claim("demo-c has failed in time, and says why", view.state is not State.ACTIVE, str(view.state))
        report.say(f"reason: {view.reason}")
        lab.run(victim, ("ip", "link", "set", "mgmt0", "up"), check=True)
        report.say(f"{victim}'s management port is up again")
        view = stage.follow(view, lambda seen: seen.state is State.FAILED, LIMIT_S)
        after = snapshot(lab, stage.topology)
        report.claim("every switch, host and guest is as it was before demo-c", after == before, before.differs(after))
        sites = stage.client.sites()
        report.claim(
            f"VLAN {number} is free again at every site",
            all(number in site.free for site in sites if site.name in view.vlans),
        )
        for key in stage.clusters:
            seen = stage.follow(stage.client.cluster(key), lambda seen: seen.state is State.ACTIVE, LIMIT_S)
            report.claim(f"{key} is active", seen.state is State.ACTIVE, str(seen.state))
        answer = pinging.result()
        report.claim(f"demo-a did not lose a frame meanwhile: {answer.words}", " 0% packet loss" in answer.words)


def _confirmed(view: ClusterView, element: str) -> bool:
    return any(one.element == element and one.progress is Progress.CONFIRMED for one in view.placements)
