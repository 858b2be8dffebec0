"""Sessions with devices: SSH, shells, NETCONF and eAPI. This package imports neither ``switch`` nor ``edge``."""
