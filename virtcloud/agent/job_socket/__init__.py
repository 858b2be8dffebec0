"""The job socket: the agent's AF_UNIX API for the hooks of a batch system on the same host."""
