"""Fuzzing of what hears a peer: bytes in, and what must hold whatever they are. README.md says how to run it."""
