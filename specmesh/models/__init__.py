"""Downloaded models, and the bundled pair."""
