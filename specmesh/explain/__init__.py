"""`specmesh explain`: a log of decisions in words and pictures."""
