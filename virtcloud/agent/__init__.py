"""The agent: the daemon that reconciles one host with its wanted state and serves the job socket."""
