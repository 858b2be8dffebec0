"""The data model: VLAN sets, topology, clusters, documents and errors. Pure: no I/O, no clock, no randomness."""
