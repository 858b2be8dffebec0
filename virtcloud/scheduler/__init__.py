"""Reconciliation of a batch system's jobs with SBF's clusters, on the host of the batch system's server."""
