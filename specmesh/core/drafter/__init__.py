"""The drafter's side: sessions, steps of the draft model, and their verifiers."""
