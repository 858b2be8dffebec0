"""The file servers (NFS) of a service node: one NFS-Ganesha for each network."""
