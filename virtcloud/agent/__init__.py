"""The agent: reconciles one host with its wanted state (DESIGN.md §3), and serves the job socket."""
