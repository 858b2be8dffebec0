"""The demonstration: two clusters over three sites, a failed creation, and the removal of all clusters."""
