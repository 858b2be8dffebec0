"""An SBF with simulated switches and hosts on this machine, without root and without devices: ``virtcloud up``."""
