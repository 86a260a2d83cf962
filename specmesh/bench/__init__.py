"""`specmesh bench`: a live pair measured, and an imagined one."""
