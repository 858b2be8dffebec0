"""The demonstration: two clusters over three sites, a switch that is cut off, and nothing left in the end."""
