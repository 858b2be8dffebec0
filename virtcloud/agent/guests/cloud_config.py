"""The merge of the user's cloud-config with the generated cloud-config. Pure.

The user's cloud-config is untrusted, and the agent runs as root. The agent handles YAML nodes and constructs no Python
values, so aliases and merge keys cannot use up memory.
"""

from typing import Any, Final

import yaml

from virtcloud.model.errors import BadInput, Refused
from virtcloud.model.user_data import HEADER, check_user_data
from virtcloud.model.yaml_loader import YamlLoader

MAX_WIDTH: Final = 1 << 20
"""The width at which YAML lines are wrapped. SSH keys are shorter, so each key stays on one line."""
KINDS: Final[dict[type[yaml.Node], str]] = {
    yaml.MappingNode: "a mapping",
    yaml.SequenceNode: "a list",
    yaml.ScalarNode: "a single value",
}

CloudConfig = dict[str, Any]


def render_cloud_config(generated: CloudConfig, guest: str, user_data: str | None) -> str:
    """Return the merge of the generated cloud-config and ``user_data``.

    Two lists with the same key are concatenated, and two mappings are merged. Any other value of the user replaces the
    generated value. Raise Refused if ``user_data`` is no cloud-config, or if a key's two values are of different kinds.
    """
    text = render_yaml(generated)
    if user_data is None:
        return f"{HEADER}\n{text}"
    path = f"guest {guest}: user_data"
    try:
        check_user_data(user_data, f"guest {guest}")
        tree = _merge(_compose(text), _compose(user_data), path)
        merged = yaml.serialize(tree, Dumper=yaml.SafeDumper, allow_unicode=True, width=MAX_WIDTH)
    except BadInput as error:
        raise Refused(str(error)) from error
    except RecursionError as error:
        raise Refused(f"{path}: expected cloud-config, got too many nested levels") from error
    return f"{HEADER}\n{merged}"


def _compose(text: str) -> yaml.Node:
    root = yaml.compose(text, Loader=YamlLoader)
    return yaml.MappingNode("tag:yaml.org,2002:map", []) if root is None else root


def _merge(generated: yaml.Node, users: yaml.Node, path: str) -> yaml.Node:
    if type(generated) is not type(users):
        line = users.start_mark.line + 1
        raise Refused(f"{path}: expected {KINDS[type(generated)]}, got {KINDS[type(users)]} in line {line}")
    if isinstance(generated, yaml.MappingNode):
        return yaml.MappingNode(generated.tag, _merge_keys(generated, users, path), flow_style=False)
    if isinstance(generated, yaml.SequenceNode):
        return yaml.SequenceNode(generated.tag, [*generated.value, *users.value], flow_style=False)
    return users


def _merge_keys(generated: yaml.MappingNode, users: yaml.Node, path: str) -> list[tuple[yaml.Node, yaml.Node]]:
    added = {str(key.value): (key, value) for key, value in users.value}
    merged = []
    for key, value in generated.value:
        _, users_value = added.pop(key.value, (None, None))
        merged.append((key, _merge(value, users_value, f"{path}: {key.value}") if users_value else value))
    return [*merged, *added.values()]


class _Dumper(yaml.CSafeDumper):
    """Writes subclasses of str, such as `Name`, as strings, and texts of several lines in literal style (``|``)."""


def _represent_text(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_multi_representer(str, _represent_text)


def render_yaml(document: CloudConfig) -> str:
    """Return a document as YAML."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=MAX_WIDTH)
