"""The network of a host: interfaces, their names, the segments of clusters, packet filters, and probes of addresses."""
