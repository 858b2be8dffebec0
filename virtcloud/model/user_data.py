"""User data of guests: the user's own cloud-config, which the guest's seed includes."""

from functools import lru_cache
from typing import Any, Final

import yaml

from virtcloud.model.errors import BadInput
from virtcloud.model.yaml_loader import YamlLoader

MAX_USER_DATA: Final = 16 * 1024
"""Maximum size of a guest's user data in bytes: the same limit as in common clouds.

Larger files belong in an image or on a disk.
"""
MAX_DISTINCT: Final = 128 * 1024
"""Maximum size in bytes of all distinct user data of one request, because PyYAML needs 2 s for this size."""
HEADER: Final = "#cloud-config"
MAX_DEPTH: Final = 50
EXPECTED: Final = f"expected cloud-config (the first line '{HEADER}', then a YAML mapping)"


KEPT_VERDICTS: Final = 64
"""Number of texts whose check results are cached. Guests of one cluster usually have the same user data."""


class _TooDeepError(Exception):
    """The text has more than ``MAX_DEPTH`` nested levels."""


class _NodeLoader(YamlLoader):
    """Composes nodes. Stops at ``MAX_DEPTH``, because the parser's time grows with the square of the depth."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401 - as in PyYAML
        """Return the next node.

        Raise _TooDeepError for a collection inside ``MAX_DEPTH`` other nodes.
        """
        self.depth += 1
        if self.depth > MAX_DEPTH and self.check_event(yaml.CollectionStartEvent):
            raise _TooDeepError
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def check_user_data(text: str, guest: str) -> None:
    """Raise BadInput for a text that is no cloud-config or is too long. The message begins with ``guest``."""
    if (fault := _find_fault(text)) is not None:
        raise BadInput(f"{guest}: user_data: {fault}")


def check_total_size(guests: object) -> None:
    """Raise BadInput if the distinct user data of unparsed guests is too long. Ignore guests that are no mappings."""
    found = [guest.get("user_data") for guest in guests if isinstance(guest, dict)] if isinstance(guests, list) else []
    size = sum(len(text.encode(errors="surrogatepass")) for text in {text for text in found if isinstance(text, str)})
    if size > MAX_DISTINCT:
        raise BadInput(
            f"user_data: expected at most {MAX_DISTINCT} bytes in the different texts of all guests, got {size}: use "
            "the same text for several guests, or put files into the image"
        )


@lru_cache(KEPT_VERDICTS)
def _find_fault(text: str) -> str | None:
    """Return the fault of a text, or None. The result is cached, because PyYAML needs 0.2 s for 16 KiB.

    Aliases and merge keys cannot expand, because no values are constructed.
    """
    if (size := len(text.encode(errors="surrogatepass"))) > MAX_USER_DATA:
        return f"expected at most {MAX_USER_DATA} bytes, got {size}"
    if text.partition("\n")[0].rstrip() != HEADER:
        return f"{EXPECTED}, got another first line"
    try:
        root = yaml.compose(text, Loader=_NodeLoader)
    except _TooDeepError:
        return f"{EXPECTED}, got more than {MAX_DEPTH} nested levels"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        return f"{EXPECTED}, got no YAML{where}: {getattr(error, 'problem', None) or 'bad character'}"
    if not isinstance(root, yaml.MappingNode):
        kinds = {type(None): "no keys", yaml.SequenceNode: "a list", yaml.ScalarNode: "text"}
        return f"{EXPECTED}, got {kinds[type(root)]} behind the first line"
    return None
