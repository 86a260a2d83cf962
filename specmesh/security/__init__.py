"""Keys, pairing, CURVE, and the addresses that need keys."""
