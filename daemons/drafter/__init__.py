"""Drafter."""
