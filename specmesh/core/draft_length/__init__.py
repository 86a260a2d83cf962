"""Draft length."""
