"""The wire: frames between verifier and drafter. PROTOCOL.md in this folder is authoritative."""
