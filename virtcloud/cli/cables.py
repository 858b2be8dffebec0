"""What was found of a site's cables, as ``site verify`` prints it: what is wrong, what could not be told, and why."""

import click

from virtcloud.model.cables import CableState, CableView, SiteCables

TO_DO = {
    CableState.OTHER_NEIGHBOUR: "another neighbour: move the cable, or correct the topology",
    CableState.OTHER_PORT: "another port: move the cable, or correct the topology",
    CableState.ELSEWHERE: "it is elsewhere: move the cable, or correct the topology",
    CableState.UNLISTED: "not in the topology: take the cable out, or add the link",
}


def tell(found: SiteCables) -> None:
    """Print every cable that is not right, with what was heard and what to do, then how many are right."""
    for cable in found.wrong:
        _tell(cable, f"wrong: {cable.a} - {cable.b}: {TO_DO[cable.state]}")
    for cable in found.cables:
        if cable.state is CableState.UNKNOWN:
            _tell(cable, f"could not be told: {cable.a} - {cable.b}")
    for why in found.unread.values():
        click.echo(f"not asked: {why}")
    counted = {state: sum(one.state is state for one in found.cables) for state in CableState}
    click.echo(
        f"site {found.site}: {counted[CableState.RIGHT]} cables are right, {len(found.wrong)} wrong, "
        f"{counted[CableState.UNKNOWN]} could not be told"
    )


def fault(found: SiteCables) -> str:
    """Say in a line what is wrong; empty when nothing is."""
    wrong = [f"{len(found.wrong)} cables are not where the topology says"] if found.wrong else []
    unread = [f"{len(found.unread)} switches could not be asked: {', '.join(found.unread)}"] if found.unread else []
    return f"site {found.site}: {'; '.join([*wrong, *unread])}" if wrong or unread else ""


def _tell(cable: CableView, head: str) -> None:
    click.echo(head)
    for words in cable.found:
        click.echo(f"  {words}")
