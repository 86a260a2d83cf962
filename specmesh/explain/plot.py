"""Plots of a file of decisions: a PNG, or an HTML page with the plot as SVG and the summary as a table."""

import html
import io
from pathlib import Path
from typing import TYPE_CHECKING

from specmesh.core.decision import WAIT, PolicyRecord
from specmesh.errors import ConfigError
from specmesh.explain.reader import DecisionFile
from specmesh.explain.series import Series, series
from specmesh.explain.summary import Summary, rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".html")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; }}
table {{ border-collapse: collapse; }} th, td {{ text-align: left; vertical-align: top; padding: .2em 1em .2em 0; }}
svg {{ max-width: 100%; height: auto; }}
</style></head><body><h1>{title}</h1>
<table>
{table}
</table>
{svg}
</body></html>
"""


def write(file: DecisionFile, summary: Summary, out: Path) -> None:
    """Draw into `out`, a .png or .html. Raises ConfigError without matplotlib, or where `out` cannot be written."""
    figure = _figure(file, summary)
    made = io.BytesIO()
    if out.suffix.lower() == ".png":
        figure.savefig(made, format="png", dpi=120)
        content = made.getvalue()
    else:
        figure.savefig(made, format="svg", metadata={"Date": None})
        content = page(summary, made.getvalue().decode()).encode()
    try:
        out.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written ({error.strerror}): name another file") from None


def page(summary: Summary, svg: str) -> str:
    """A page that needs nothing else. svg: a document; its prologue is left out."""
    title = html.escape(f"specmesh decisions: {summary.model}")
    table = "\n".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows(summary)
    )
    return _PAGE.format(title=title, table=table, svg=svg[svg.index("<svg") :])


def _figure(file: DecisionFile, summary: Summary) -> "Figure":
    """Acceptance, drafts, waiting and throughput over time, and the newest policy over the lead."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'specmesh[explain]', or leave --out out") from None
    curves = series(file)
    figure = Figure(figsize=(10, 13), layout="constrained")
    axes = figure.subplots(5, 1)
    for axis in axes[1:4]:
        axis.sharex(axes[0])
    _acceptance(axes[0], curves)
    _drafts(axes[1], curves)
    _waiting(axes[2], curves)
    _throughput(axes[3], curves)
    _policy(axes[4], summary.policy)
    for axis in axes[:4]:
        for border in curves.borders[:-1]:
            axis.axvline(border, color="0.85", linewidth=0.8, zorder=0)
    axes[3].set_xlabel("seconds" + (", the sessions one after another" if len(curves.borders) > 1 else ""))
    figure.suptitle(
        f"{summary.model}: {summary.steps} steps, {summary.tokens_per_second:.1f} tokens/s", parse_math=False
    )
    return figure


def _acceptance(axis: "Axes", curves: Series) -> None:
    for position, rates in enumerate(curves.rates, 1):
        axis.plot(curves.time, _gaps(rates), linewidth=1, label=f"estimate, draft {position}")
    axis.plot(curves.time, _gaps(curves.accepted), color="0.3", linewidth=1, linestyle=":", label="stood, recent steps")
    axis.set_ylabel("acceptance")
    axis.set_ylim(-0.02, 1.02)
    _legend(axis)


def _drafts(axis: "Axes", curves: Series) -> None:
    axis.step(curves.time, curves.lead, where="pre", linewidth=0.8, color="tab:gray", label="lead")
    axis.step(curves.time, curves.asked, where="pre", linewidth=0.8, color="tab:orange", label="asked for")
    axis.step(curves.time, curves.draft_n, where="pre", linewidth=1.2, color="tab:blue", label="draft_n, verified")
    axis.set_ylabel("drafts")
    axis.set_ylim(bottom=-0.2)
    _legend(axis)


def _waiting(axis: "Axes", curves: Series) -> None:
    axis.fill_between(curves.time, curves.waiting, step="pre", color="tab:red", alpha=0.6, linewidth=0)
    axis.set_ylabel("share of time\nwaiting")
    axis.set_ylim(0, 1)


def _throughput(axis: "Axes", curves: Series) -> None:
    axis.plot(curves.time, _gaps(curves.throughput), linewidth=1.2, label="measured, recent steps")
    axis.plot(curves.time, _gaps(curves.promised), linewidth=1, linestyle="--", label="promised by the policy")
    axis.set_ylabel("tokens per second")
    axis.set_ylim(bottom=0)
    _legend(axis)


def _policy(axis: "Axes", policy: PolicyRecord | None) -> None:
    axis.set_xlabel("lead (drafts in hand)")
    axis.set_ylabel("drafts to verify")
    if policy is None or not policy.leads:
        axis.text(0.5, 0.5, "no policy was logged", ha="center", va="center", transform=axis.transAxes)
        axis.set_yticks([])
        return
    most = max(*policy.drafts, 1)
    axis.step(policy.leads, policy.drafts, where="post", linewidth=1.5)
    ticks = [WAIT, *range(0, most + 1, max(most // 8, 1))]
    axis.set_yticks(ticks, ["wait", *map(str, ticks[1:])])
    axis.set_title(f"the newest policy, {policy.rate:.1f} tokens/s promised", fontsize="medium")


def _legend(axis: "Axes") -> None:
    axis.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _gaps(values: list[float | None]) -> list[float]:
    """Nothing is drawn where there is nothing."""
    return [float("nan") if value is None else value for value in values]
