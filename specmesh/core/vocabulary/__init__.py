"""Vocabularies: how a drafter gets its verifier's, compares it with its own and translates ids."""
