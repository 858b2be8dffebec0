"""Sites, cables and pools from NetBox: read with pynetbox, translated, and merged with SBF's topology."""
