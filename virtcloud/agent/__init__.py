"""One machine's converger: reads what the machine carries, makes it what is wanted, and confirms (DESIGN.md §3)."""
