from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from virtcloud.lab import Lab

START = """
folder=$(mktemp -d)
tcpdump -Z root --immediate-mode -l -nn -e -i "$@" >"$folder/frames" 2>"$folder/log" &
until grep -q '^listening on' "$folder/log"; do
    kill -0 $! || { cat "$folder/log" >&2; exit 1; }
    sleep 0.1
done
echo $! "$folder"
"""
"""Starts a capture, prints its process ID and folder, and exits when the capture has begun."""
END = """
sleep 0.5
while read -r _ _ state _ </proc/$0/stat && [ "$state" != S ]; do sleep 0.1; done
kill -INT $0
while kill -0 $0 2>/dev/null; do sleep 0.1; done
cat "$1/frames"
rm -r "$1"
"""
"""Waits half a second for the last frames, then ends a capture and prints its frames."""


@dataclass
class Capture:
    """The frames of a capture, as ``tcpdump -e`` prints them. The text is empty until the capture ends."""

    text: str = ""


@contextmanager
def capturing(lab: Lab, node: str, interface: str, expression: str, *, namespace: str = "") -> Iterator[Capture]:
    """During the context, capture the frames on ``interface`` that match ``expression``, a filter of ``tcpdump``.

    If ``namespace`` is not empty, the interface is in the network namespace with this name on the node.
    """
    enter = ["ip", "netns", "exec", namespace] if namespace else []
    started = lab.run(node, [*enter, "sh", "-c", START, "sh", interface, *expression.split()], check=True)
    capture = Capture()
    try:
        yield capture
    finally:
        capture.text = lab.run(node, ["sh", "-c", END, *started.stdout.split()], check=True).stdout
