"""The two daemons: sockets, threads and clocks around the cores, which decide.

Branches here ask what came, whether it is time, what is there, or what a library answered. Others choose, each for a
reason: tests/unit/repository/test_shells.py lists every function with branches, and why it has them.
"""
