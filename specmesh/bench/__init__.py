"""Measurements of a running pair, and forecasts."""
