"""The loader of the YAML texts that users write.

For an invalid text, the loader raises YAMLError, and neither ValueError nor another of Python's own errors. Only a text
with too many nested levels causes RecursionError.
"""

from typing import Any, Final

import yaml

MAX_QUOTED: Final = 100
"""Maximum number of characters of an invalid value in a message."""
ESCAPE_DIGITS: Final = 8
"""Number of digits of the longest escape code."""
MERGE_TAG: Final = "tag:yaml.org,2002:merge"
"""Tag of the key ``<<``, which PyYAML accepts several times in one mapping."""


class YamlLoader(yaml.SafeLoader):
    """A loader that converts Python's errors from PyYAML, such as ValueError, into YAMLError with a line number."""

    def fetch_more_tokens(self) -> None:
        """Scan the next tokens. Raise ScannerError for an escape code beyond Unicode.

        PyYAML itself raises OverflowError or ValueError for such a code.
        """
        try:
            super().fetch_more_tokens()
        except (ValueError, ArithmeticError) as error:
            problem = f"expected the code of a character, at most 0010FFFF, got {self.prefix(ESCAPE_DIGITS)!r}"
            raise yaml.scanner.ScannerError(problem=problem, problem_mark=self.get_mark()) from error

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: ANN401 - as in PyYAML
        """Return the value of a node. Raise ConstructorError for an invalid value.

        PyYAML itself raises errors of Python, for example ValueError for 2026-02-30.
        """
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                value.encode()
        except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
            kind = node.tag.rpartition(":")[2]
            problem = f"expected a valid value of type {kind}, got {node.value[:MAX_QUOTED]!r}"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark) from error
        return value


class UniqueKeyLoader(YamlLoader):
    """A loader that refuses a key that a mapping contains twice. PyYAML itself ignores the first value."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:  # noqa: ANN401 - as in PyYAML
        """Return the next mapping. Raise ComposerError for a key that the mapping contains twice."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE_TAG:
                continue
            if first := lines.get((key.tag, key.value)):
                problem = f"expected each key once, got {key.value[:MAX_QUOTED]!r} again, first in line {first}"
                raise yaml.composer.ComposerError(problem=problem, problem_mark=key.start_mark)
            lines[key.tag, key.value] = key.start_mark.line + 1
        return node
