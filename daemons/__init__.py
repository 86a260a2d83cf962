"""The daemons: thin shells around specmesh.core. They poll, decode, hand over, carry out; they decide nothing."""
