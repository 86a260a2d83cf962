"""Sampling: the choice of tokens from logits, and how a target accepts drafts."""
