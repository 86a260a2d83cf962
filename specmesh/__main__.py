"""`python -m specmesh` is the `specmesh` command."""

from specmesh.cli import main

if __name__ == "__main__":
    main()
