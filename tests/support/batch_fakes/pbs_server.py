"""A fake PBS server for `qmgr` commands. Output and errors are those of OpenPBS 23.06."""

from dataclasses import dataclass, field

from pbs_hooks.openpbs.server_state import PROGRAM_TYPE
from virtcloud.model.errors import Refused

NEW = {
    "type": "site",
    "enabled": "true",
    "event": "",
    "user": "pbsadmin",
    "alarm": "30",
    "order": "1",
    "debug": "false",
    "fail_action": "none",
}
CGROUPS = """Hook pbs_cgroups
    type = site
    enabled = false
    event = execjob_begin,execjob_epilogue,execjob_end,execjob_launch,
\texecjob_attach,
\texechost_startup
    user = pbsadmin
    alarm = 90
    freq = 120
    order = 100
    debug = false
    fail_action = offline_vnodes

"""


@dataclass
class FakePbsServer:
    """Stores hooks and resources. ``changes`` lists the lines that change hooks or resources, in order.

    If ``busy`` is set, the server refuses to delete the resource ``vcluster``, but ``changes`` lists the deletion.
    If ``dies_at`` is set, the server executes this number of changes. The next change raises Refused, as if the
    installer had been killed before this change.
    """

    hooks: dict[str, dict[str, str]] = field(default_factory=dict)
    files: dict[tuple[str, str], str] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)
    busy: bool = False
    dies_at: int | None = None
    nodes: tuple[str, ...] = ()

    def run_line(self, line: str) -> str:
        verb, kind, *rest = line.split(maxsplit=3)
        if verb == "list":
            return {"hook": self._hooks, "node": self._nodes}.get(kind, self._resources)()
        if verb == "export":
            return self.files.get((rest[0], rest[1].split()[0]), "")
        self._record_change(line)
        if line == "delete resource vcluster" and self.busy:
            raise Refused("qmgr -c 'delete resource vcluster': the PBS server answered: Resource busy on job")
        self._change(verb, kind, *rest)
        return ""

    def import_text(self, hook: str, kind: str, text: str) -> None:
        self._record_change(f"import hook {hook} {kind}")
        self.files[hook, kind] = text

    def _record_change(self, line: str) -> None:
        if self.dies_at == len(self.changes):
            raise Refused("the installer was killed here")
        self.changes.append(line)

    def _change(self, verb: str, kind: str, name: str, words: str = "") -> None:
        objects = self.hooks if kind == "hook" else self.resources
        match verb, kind:
            case "create", "hook":
                self.hooks[name] = dict(NEW)
            case "create", "resource":
                self.resources[name] = words
            case "delete", _:
                del objects[name]
                self.files = {key: text for key, text in self.files.items() if key[0] != name}
            case "set", "hook":
                key, _, value = words.partition(" = ")
                self.hooks[name][key] = value.strip('"')

    def _hooks(self) -> str:
        return CGROUPS + "".join(
            f"Hook {name}\n" + "".join(_attribute(key, value) for key, value in attributes.items()) + "\n"
            for name, attributes in self.hooks.items()
        )

    def _nodes(self) -> str:
        return "".join(f"Node {name}\n    ntype = PBS\n    state = free\n\n" for name in self.nodes)

    def _resources(self) -> str:
        if not self.resources:
            return ""
        pairs = {name: dict(word.split("=") for word in words.split(",")) for name, words in self.resources.items()}
        return "#\n# Create resources and set their properties.\n#\n" + "".join(
            f"Resource {name}\n    type = {properties['type']}\n    flag = {properties.get('flag', '')}\n\n"
            for name, properties in pairs.items()
        )


def _attribute(key: str, value: str) -> str:
    if key == "event" and value:
        first, *more = sorted(value.split(","), reverse=True)
        value = ",\n\t".join([first, *more])
    return f"    {key} = {value or chr(34) * 2}\n"


def with_program(server: FakePbsServer, name: str, text: str) -> FakePbsServer:
    server.hooks[name] = dict(NEW)
    server.files[name, PROGRAM_TYPE] = text
    return server
