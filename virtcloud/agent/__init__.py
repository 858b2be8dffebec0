"""The agent: reconciles one machine with its wanted state (DESIGN.md §3), and serves the job socket."""
