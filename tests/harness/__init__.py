"""A verifier and a drafter in this process, driven by frames, requests, an engine's results and a clock.

`cores`: both in virtual time, no socket, no thread. `loops`: both on threads with real sockets. Tests know these two
only, not the classes behind them.
"""

PATIENCE = 120.0
"""Most seconds anything is waited for: only a hang reaches them, on a busy machine too."""
