"""`specmesh doctor`: what is wrong here. Each module gathers facts of one kind and judges them; judging is pure."""
