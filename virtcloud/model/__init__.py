"""The pure model: VLAN sets, topology, clusters, wanted documents and errors. No I/O, no clock, no randomness."""
