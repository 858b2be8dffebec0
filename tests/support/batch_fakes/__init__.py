"""Fakes of batch servers, SBF and hosts, for tests of hooks, scripts and reconciliation."""
