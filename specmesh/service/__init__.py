"""`specmesh service`: the daemons as services of systemd or launchd."""
