"""`specmesh doctor`: what is wrong here."""
