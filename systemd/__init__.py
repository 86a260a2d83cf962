"""Templates of systemd units, installed as specmesh.systemd."""
