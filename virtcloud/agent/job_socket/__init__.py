"""The agent's AF_UNIX API, by which a batch system on this machine asks about the clusters of its jobs."""
