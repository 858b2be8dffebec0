"""How a table fits a terminal: words, VLAN ranges and times are never broken. Pure."""

from collections.abc import Sequence

GAP = 2
"""Characters between two columns."""


def column_widths(cells: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return the width of each column, or None when even the longest words do not fit beside each other.

    ``cells`` are the rows, the head first; all have the same number of columns. No column is narrower than its longest
    word, nor wider than its longest cell; room that is left is shared evenly.
    """
    columns = list(zip(*cells, strict=True))
    least = [max(_longest_word(cell) for cell in column) for column in columns]
    most = [max(len(cell) for cell in column) for column in columns]
    room = width - sum(least) - GAP * (len(columns) - 1)
    if room < 0:
        return None
    return _spread(least, most, room)


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of ``text``, broken between words only; at least one."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return lines


def _spread(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    widths = list(least)
    while room:
        lacking = [index for index, width in enumerate(widths) if width < most[index]]
        if not lacking:
            break
        widths[min(lacking, key=widths.__getitem__)] += 1
        room -= 1
    return widths


def _longest_word(cell: str) -> int:
    return max((len(word) for word in cell.split()), default=1)
