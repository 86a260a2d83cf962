"""The packages: templates of services lie at top level, where pyproject.toml's search for packages finds none."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[
        *find_namespace_packages(include=["specmesh*"]),
        "specmesh.systemd",
        "specmesh.launchd",
    ]
)
