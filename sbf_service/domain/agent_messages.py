"""The messages of agents: the meaning of each message, and the remedy. Pure.

The console and the page "When something fails" show the remedies. Their texts are Markdown, with links relative to
`docs/how-to`.
"""

import re
from dataclasses import dataclass
from typing import Final

_LINK: Final = re.compile(r"\[([^]]*)\]\([^)]*\)")


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """An agent's message. ``parts`` are the texts that every instance of the message contains."""

    shown: str
    """The message as the page shows it. An ellipsis replaces the text that varies."""
    parts: tuple[str, ...]
    meaning: str
    action: str

    def matches(self, message: str) -> bool:
        """Return whether ``message`` contains all ``parts``."""
        return all(part in message for part in self.parts)

    @property
    def remedy(self) -> str:
        """``action`` as a sentence without Markdown."""
        text = _LINK.sub(r"\1", self.action).replace("`", "")
        return f"{text[0].upper()}{text[1:]}."


SILENCE: Final = AgentMessage(
    "its agent has sent no heartbeat for 150 s",
    ("its agent has sent no heartbeat",),
    "the host or its agent died, or the host cannot reach SBF. The host's clusters are degraded; guests may still run. "
    "During these 150 s (`timing.agent_silence` of SBF), `cluster show` still shows `active`, and a command such as "
    "`guest stop` waits",
    "start the host or its agent: `systemctl status virtcloud-agent`",
)
AGENT_MESSAGES: Final = (
    SILENCE,
    AgentMessage(
        "this agent (virtcloud …) cannot read the wanted document: …",
        ("cannot read the wanted document",),
        "SBF has another version, and its document contains fields that this agent does not know. Clusters and guests "
        "on the host continue, but the host gets no changes",
        "upgrade the agent to the version of SBF",
    ),
    AgentMessage(
        "libvirt (…) did not list domains within 15 s",
        (" did not ", "list domains"),
        "libvirtd hangs. The agent continues to create and remove networks, but sends SBF no confirmations. Therefore "
        "the VLAN ID of a removed cluster stays claimed until libvirtd answers",
        "on the host: `systemctl restart libvirtd`; guests continue to run",
    ),
    AgentMessage(
        "after all steps, the host still differs from the wanted state: …",
        ("after all steps, the host still differs from the wanted state",),
        "another program on the host reverts the agent's changes",
        "find the program that manages bridges or guests on the host",
    ),
    AgentMessage(
        "guest g1 ended: the kernel ended its programs at its memory limit of 64 MiB (out of memory): …",
        ("the kernel ended its programs at ",),
        "the programs in the guest needed more memory than the guest has",
        "the owner runs less in the guest, or creates the cluster again with `--memory`",
    ),
    AgentMessage(
        "guest g1 ended: the kernel ended it because the host had no memory left, …",
        ("the kernel ended it because the host had no memory left",),
        "the guests may use more memory than the host has, or other programs on the host use much memory",
        "the administrator limits the other programs, or lowers [the overcommitment](place-guests.md)",
    ),
    AgentMessage(
        "guest g1 ended 3 times within 20 s: expected an image whose first program continues to run; …",
        ("expected an image whose first program continues to run",),
        "the image's first program (`/sbin/init`) ended, or the virtual machine found nothing to boot. [The agent "
        "starts the guest again](limit-guests.md#guests-that-end)",
        "the owner reads the console: `virtcloud guest log CLUSTER g1`",
    ),
    AgentMessage(
        "this host has an nftables table 'bridge virtcloud' that virtcloud did not create",
        ("this host has a", "nftables", " that virtcloud did not create"),
        "another program uses this name; no guest starts",
        "rename the table, or delete it: `nft delete table bridge virtcloud`",
    ),
    AgentMessage(
        "host … allows no guests of clusters with open filters",
        ("allows no guests of clusters with open filters",),
        "the site or the host does not allow `--filters open`",
        "choose other hosts, or [ask the site's administrator](filter-guests.md) to allow open filters for the host",
    ),
    AgentMessage(
        "this host passes the frames of all bridges to its packet filter",
        ("passes the frames of all bridges to its packet filter",),
        "`br_netfilter` is active, usually because of Docker",
        "turn off `br_netfilter` on the host, or accept the risk in the agent's settings; [the page on "
        "installation](install-on-your-machines.md) describes both",
    ),
    AgentMessage(
        "image …: its description is malformed",
        ("its description is malformed",),
        "`image.yaml` has an error in the named line; clusters with this image fail after three attempts",
        "correct `image.yaml` in the named line; `virtcloud image list` shows remaining faults",
    ),
    AgentMessage(
        "cannot record the state of eth0",
        ("cannot ", "record the state of"),
        "the state folder is full or read-only; the agent did not change the uplink",
        "free space in the agent's state folder",
    ),
    AgentMessage(
        "the agent ends because the thread …",
        ("the agent ends because",),
        "a thread of the agent failed; systemd restarts the agent after 5 s, and nothing is lost",
        "report the failure, with the journal",
    ),
)


def find_agent_message(message: str) -> AgentMessage | None:
    """Return the description of an agent's message, or None for an unknown message."""
    return next((known for known in AGENT_MESSAGES if known.matches(message)), None)


def render_agent_messages() -> str:
    """Return the messages as a table in Markdown."""
    rows = (f"| `{known.shown}` | {known.meaning} | {known.action} |\n" for known in AGENT_MESSAGES)
    return "| message | meaning | your action |\n|---|---|---|\n" + "".join(rows)
