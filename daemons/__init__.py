"""The two daemons: sockets, threads and clocks around the cores, which decide.

Branches here depend on a frame's kind, on time, on things that are there or not, and on the answers
of libraries. The others choose, each for a reason: tests/unit/repository/test_shells.py lists every
function with branches, and the reason.
"""
