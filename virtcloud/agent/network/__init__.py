"""The network of a machine: interfaces of the kernel, their names, and the segments of clusters."""
