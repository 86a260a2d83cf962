"""specmesh: speculative decoding across machines."""

__version__: str


def __getattr__(name: str) -> str:
    """`__version__`, looked up when asked for: importlib.metadata takes longer to import than most commands to run."""
    if name == "__version__":
        from importlib.metadata import version

        return version("specmesh")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
