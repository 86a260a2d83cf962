"""A verifier and a drafter in this process, driven by frames, requests, an engine's results and a clock.

`cores`: both in virtual time, no socket, no thread. `loops`: both on threads with real sockets. Tests know these two
only, not the classes behind them.
"""
