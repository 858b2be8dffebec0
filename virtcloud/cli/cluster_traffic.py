"""``virtcloud cluster traffic``: show the traffic of a cluster's hosts."""

from collections.abc import Callable, Sequence

import click

from virtcloud.cli import printing
from virtcloud.cli.groups import SummaryCommand
from virtcloud.cli.options import open_client
from virtcloud.model.cluster import ENDED_STATES
from virtcloud.model.traffic import ElementTraffic, TrafficRate

COLUMNS = ("traffic of", "site", "received/s", "sent/s", "frames/s", "highest received/s", "highest sent/s", "reported")
NO_TRAFFIC = "no host has reported traffic yet: agents report every half minute"
ENDED = "cluster {} is {}: SBF deletes the counters of a cluster when the cluster ends"
UNKNOWN = "unknown"


@click.command("traffic", cls=SummaryCommand)
@click.argument("key")
@printing.json_option
@click.pass_context
def traffic_command(context: click.Context, key: str, as_json: bool) -> None:
    """Show the traffic between the hosts of the cluster KEY and the networks of their sites.

    For each host, the table has the rates in the last report, and the highest rates of the last 15 minutes. Frames
    between guests of the same host are not counted. With --json, print all rates of the last 15 minutes.

    Example: virtcloud cluster traffic demo
    """
    cluster = open_client(context).get(key)
    empty = ENDED.format(key, cluster.state) if cluster.state in ENDED_STATES else NO_TRAFFIC
    printing.print_list(COLUMNS, cluster.traffic(), _row, empty, as_json=as_json)


def print_traffic(found: Sequence[ElementTraffic]) -> None:
    """Print the rates of hosts, for ``cluster show``. If no host has reported, print nothing."""
    if found:
        click.echo()
        printing.print_table(COLUMNS, [_row(one) for one in found], "")


def _row(traffic: ElementTraffic) -> tuple[object, ...]:
    last = traffic.rates[-1] if traffic.rates else None
    return (
        traffic.element,
        traffic.site,
        UNKNOWN if last is None else printing.format_size(last.received_bytes),
        UNKNOWN if last is None else printing.format_size(last.sent_bytes),
        UNKNOWN if last is None else f"{last.received_frames + last.sent_frames:.1f}",
        _format_highest(traffic, lambda rate: rate.received_bytes),
        _format_highest(traffic, lambda rate: rate.sent_bytes),
        printing.format_time(traffic.reported_at),
    )


def _format_highest(traffic: ElementTraffic, rate_of: Callable[[TrafficRate], float]) -> str:
    highest = max(map(rate_of, traffic.rates), default=None)
    return UNKNOWN if highest is None else printing.format_size(highest)
