"""The real kernel: network namespaces, links, mounts, and frames at a bridge with the filters of guests."""
