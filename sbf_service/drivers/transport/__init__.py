"""Sessions with devices: SSH, shells, NETCONF and eAPI. Imports neither ``switch`` nor ``edge``."""
