"""The agent's local socket: what a batch system on this machine asks about the clusters of its jobs."""
