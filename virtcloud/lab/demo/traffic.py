"""Chapters: a cluster's guests reach each other over the provider core; the other cluster's hear nothing of it."""

import re
from concurrent.futures import ThreadPoolExecutor

from virtcloud.lab.demo.frames import ABSENT, listen, ping
from virtcloud.lab.demo.stage import NETWORK, Stage
from virtcloud.model.views import ClusterView


def together(stage: Stage) -> None:
    """Let the first guest of each cluster ping the others, while a capture runs on the core."""
    report = stage.report
    with report.chapter("Guests of one cluster reach each other over the core"), ThreadPoolExecutor() as pool:
        core = stage.topology.transports[0]
        for view in stage.clusters.values():
            capture = listen(stage, pool, core.name, "br0", "icmp or vlan")
            for number in range(2, len(view.spec.guests) + 1):
                answer = ping(stage, view, 0, f"{NETWORK}{number}", "-c", "4", "-W", "2")
                report.claim(f"{view.key}: n1 reaches n{number}: {answer.words}", answer.answered, answer.words)
            frames = capture.result()
            tagged = [frame for frame in frames if _both_tags(frame, core.s_tag, view)]
            report.say(tagged[0] if tagged else "no frame with both tags was seen")
            report.claim(
                f"on the core {len(tagged)} frames of {view.key} carry both tags: S-tag {core.s_tag} and C-tag "
                f"{next(iter(view.vlans.values()))}",
                bool(tagged),
                "; ".join(frames[:3]) or "no frame at all",
            )


def _both_tags(frame: str, s_tag: int | None, view: ClusterView) -> bool:
    customer = next(iter(view.vlans.values()))
    return bool(re.search(rf"0x88a8.*vlan {s_tag}, .*vlan {customer}, ", frame))


def apart(stage: Stage) -> None:
    """Let a guest of one cluster ask all of its segment, and listen on every segment of both."""
    report = stage.report
    speaking, silent = stage.clusters.values()
    with report.chapter("The other cluster's guests hear none of it"), ThreadPoolExecutor() as pool:
        ears = {
            (view.key, guest.host): listen(stage, pool, guest.host, f"br{vlan}", "arp", "and", "host", ABSENT)
            for view in (speaking, silent)
            for guest in view.spec.guests
            for vlan in {view.vlans[stage.topology.site_of[guest.host].name]}
        }
        ping(stage, speaking, 0, ABSENT, "-c", "5", "-W", "1")
        report.say(f"{speaking.key}'s n1 has asked its whole segment, five times, who has {ABSENT}")
        for (key, host), ear in ears.items():
            heard = [frame for frame in ear.result() if ABSENT in frame]
            if key == speaking.key:
                report.claim(f"{key} on {host} hears it ({len(heard)} frames)", bool(heard), "nothing")
            else:
                report.claim(f"{key} on {host} hears nothing", not heard, "; ".join(heard))
