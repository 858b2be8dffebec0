"""Sites, cables and pools from NetBox: read with pynetbox, translate, and merge with SBF's topology."""
