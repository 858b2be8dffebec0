"""User data of guests: the user's own cloud-config, which the guest's seed includes."""

from typing import Final

import yaml

from virtcloud.model.errors import BadInput
from virtcloud.model.yaml_loader import YamlLoader

MAX_USER_DATA: Final = 16 * 1024
"""Maximum size of user data in bytes, as in common clouds. Larger files belong in an image or on a disk."""
HEADER: Final = "#cloud-config"
MAX_DEPTH: Final = 50
EXPECTED: Final = f"expected cloud-config (the first line '{HEADER}', then a YAML mapping)"


def check_user_data(text: str, guest: str) -> None:
    """Raise BadInput for a text that is no cloud-config or is too long. The message begins with ``guest``.

    The text is only parsed into nodes, so that aliases and merge keys cannot expand.
    """
    if (size := len(text.encode(errors="surrogatepass"))) > MAX_USER_DATA:
        raise _make_error(guest, f"expected at most {MAX_USER_DATA} bytes, got {size}")
    if text.partition("\n")[0].rstrip() != HEADER:
        raise _make_error(guest, f"{EXPECTED}, got another first line")
    try:
        _check_depth(text, guest)
        root = yaml.compose(text, Loader=YamlLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise _make_error(
            guest, f"{EXPECTED}, got no YAML{where}: {getattr(error, 'problem', None) or 'bad character'}"
        ) from error
    if not isinstance(root, yaml.MappingNode):
        kinds = {type(None): "no keys", yaml.SequenceNode: "a list", yaml.ScalarNode: "text"}
        raise _make_error(guest, f"{EXPECTED}, got {kinds[type(root)]} behind the first line")


def _check_depth(text: str, guest: str) -> None:
    """Raise BadInput for deeply nested data, because the parser's time grows with the square of the depth."""
    depth = 0
    for event in yaml.parse(text, Loader=YamlLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _make_error(guest, f"{EXPECTED}, got more than {MAX_DEPTH} nested levels")


def _make_error(guest: str, fault: str) -> BadInput:
    return BadInput(f"{guest}: user_data: {fault}")
