"""Fakes of batch systems' servers, SBF and hosts, for tests of hooks, scripts and reconciliation."""
