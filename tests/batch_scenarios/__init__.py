"""Scenarios of jobs with clusters, for a fake batch system and for a real OpenPBS."""
