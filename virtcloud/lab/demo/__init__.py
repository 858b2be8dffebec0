"""The demonstration: two clusters over three sites, a creation that fails, and the removal of everything."""
