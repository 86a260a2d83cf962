"""Counters, and the snapshots made of them."""
