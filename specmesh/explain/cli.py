"""`specmesh explain`: a file of decisions in words or as a plot. A thin function, like those of cli.py."""

from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.png|FILE.html",
    help="Plot into this file (needs matplotlib, the extra `explain`).",
)
@click.option("--session", type=click.IntRange(0), metavar="N", help="This session only (default: all in the file).")
@click.option(
    "--json", "as_json", envvar="SPECMESH_EXPLAIN_JSON", is_flag=True, help="Print the summary as JSON instead."
)
def explain(file: Path, out: Path | None, session: int | None, as_json: bool) -> None:
    """Explain the decisions in FILE, which `specmesh verifier --log-decisions FILE` wrote.

    Without --out the summary is printed.
    """
    from specmesh.explain import plot, reader
    from specmesh.explain import summary as summaries

    if out is not None and out.suffix.lower() not in plot.SUFFIXES:
        raise click.BadParameter("name a file that ends in .png or .html", param_hint="--out")
    found = reader.read(file)
    if session is not None:
        found = found.only(session)
    summary = summaries.summarise(found)
    if out is not None:
        plot.write(found, summary, out)
    if as_json:
        import json

        click.echo(json.dumps(summary.as_json(), indent=2))
    elif out is not None:
        click.echo(out)
    else:
        click.echo("\n".join(summaries.lines(summary)))
        click.echo(f"plot it: specmesh explain {file} --out decisions.html", err=True)
