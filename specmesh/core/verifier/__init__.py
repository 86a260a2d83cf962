"""The verifier's side: sessions, steps of the target, and their drafters."""
