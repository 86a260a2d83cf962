"""The verifier alone against speculation, token by token."""
