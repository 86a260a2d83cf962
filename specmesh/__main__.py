"""The `specmesh` command, also as `python -m specmesh`."""


def main() -> None:
    """Run the command. Ctrl-C ends it without a word, also while it is still being imported."""
    try:
        from specmesh.cli import main as run  # noqa: PLC0415 - takes a fifth of a second
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
