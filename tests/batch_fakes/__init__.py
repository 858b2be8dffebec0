"""Fakes for tests of hooks, scripts and reconciliation: servers of batch systems, SBF, and hosts."""
