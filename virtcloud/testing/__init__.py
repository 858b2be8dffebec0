"""What others may test with: stand-ins that keep the promises of the real thing. Nothing of the product imports it."""
