"""The network of a host: interfaces of the kernel, their names, and the segments of clusters."""
