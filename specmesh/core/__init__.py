"""The pure core: decides everything, touches nothing.

No module here imports a socket, a clock, a thread, a random source or a model; `now` and seeds are
arguments. tests/unit/repository/test_imports.py checks that.
"""
