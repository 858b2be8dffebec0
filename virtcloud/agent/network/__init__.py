"""The network of a host: the kernel's interfaces, their names, the segments of clusters, and address probes."""
