"""Elements: wanted states, confirmations, leases, and the heartbeats of agents."""
