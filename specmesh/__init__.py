"""specmesh: speculative decoding across machines."""

__version__: str


def __getattr__(name: str) -> str:
    """Return `__version__` on first use: importlib.metadata takes long to import."""
    if name == "__version__":
        from importlib.metadata import version

        return version("specmesh")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
