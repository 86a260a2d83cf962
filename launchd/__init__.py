"""The template of launchd jobs, installed as specmesh.launchd."""
