"""The file servers (NFS) of a gateway: one process of NFS-Ganesha for each network with the service ``nfs``."""
