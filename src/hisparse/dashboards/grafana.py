"""The dashboard as Grafana reads it, made by Grafana's own builders."""

from collections.abc import Callable, Iterator

from grafana_foundation_sdk.builders import common, heatmap, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus as sources
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from hisparse.dashboards.panels import LAST_SAMPLE, Kind, Panel, sections
from hisparse.dashboards.queries import IDENTITY

COLUMNS = 24
HEIGHTS: dict[Kind, int] = {"stat": 8, "timeseries": 8, "heatmap": 9, "table": 6}
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")

_Builder = stat.Panel | timeseries.Panel | heatmap.Panel | table.Panel


def dashboard_json() -> str:
    """Return the dashboard's JSON, the same for the same catalogue."""
    board = (
        builders.Dashboard("HiSparse")
        .uid("hisparse")
        .description("Hot buffers, host pool, offload and the health of the telemetry itself.")
        .tags(["hisparse", "kv-cache", "llm"])
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .editable()
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in _variables():
        board.with_variable(variable)
    for placed in _placed():
        if isinstance(placed, builders.Row):
            board.with_row(placed)
        else:
            board.with_panel(placed)
    return JSONEncoder(indent=2, sort_keys=True).encode(board.build()) + "\n"


def _variables() -> Iterator[builders.QueryVariable]:
    """Yield one variable for each label of a series' identity; each offers what the ones before leave."""
    chosen: list[str] = []
    for label in IDENTITY:
        series = f"{LAST_SAMPLE}{{{', '.join(chosen)}}}" if chosen else LAST_SAMPLE
        yield (
            builders.QueryVariable(label)
            .datasource(SOURCE)
            .query(f"label_values({series}, {label})")
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.ALPHABETICAL_ASC)
            .multi(True)  # noqa: FBT003  the builder has no other way
            .include_all(True)  # noqa: FBT003  the builder has no other way
            .all_value(".*")
            .current(models.VariableOption(text="All", value="$__all"))
        )
        chosen.append(f'{label}=~"${label}"')


def _placed() -> Iterator[builders.Row | _Builder]:
    """Yield sections and panels with their numbers and places, from left to right and top to bottom."""
    number, top = 0, 0
    for section in sections():
        number += 1
        yield builders.Row(section.title).id(number).grid_pos(models.GridPos(h=1, w=COLUMNS, x=0, y=top))
        top, left, height = top + 1, 0, 0
        for panel in section.panels:
            if left + panel.width > COLUMNS:
                top, left, height = top + height, 0, 0
            number += 1
            place = models.GridPos(h=HEIGHTS[panel.kind], w=panel.width, x=left, y=top)
            yield _common(_DRAWN[panel.kind](panel), panel).id(number).grid_pos(place)
            left, height = left + panel.width, max(height, place.h)
        top += height


def _common(drawn: _Builder, panel: Panel) -> _Builder:
    drawn.title(panel.title).description(panel.description).datasource(SOURCE).no_value("no traffic")
    if panel.kind != "heatmap":  # there it is the unit of the axis, and the cells are counts
        drawn.unit(panel.unit)
    if panel.unit == "percentunit":
        drawn.min(0).max(1)
    for index, query in enumerate(panel.queries):
        target = sources.Dataquery().ref_id(chr(ord("A") + index)).datasource(SOURCE).expr(query.expression)
        target.legend_format(query.legend)
        if panel.kind == "table":
            target.instant().format(PromQueryFormat.TABLE)
        elif panel.kind == "heatmap":
            target.range().format(PromQueryFormat.HEATMAP)
        else:
            target.range()
        drawn.with_target(target)
    return drawn


def _stat(_panel: Panel) -> _Builder:
    reduced = common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)  # noqa: FBT003  the builder has no other way
    return stat.Panel().reduce_options(reduced).graph_mode(common_models.BigValueGraphMode.AREA)


def _timeseries(panel: Panel) -> _Builder:
    legend = common.VizLegendOptions().placement(common_models.LegendPlacement.BOTTOM)
    legend = legend.display_mode(common_models.LegendDisplayMode.LIST).show_legend(True)  # noqa: FBT003  the builder has no other way
    tooltip = common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI)
    drawn = timeseries.Panel().legend(legend).tooltip(tooltip)
    drawn.fill_opacity(10).show_points(common_models.VisibilityMode.NEVER)
    if panel.unit != "s":
        drawn.axis_soft_min(0)
    if panel.is_stacked:
        drawn.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    return drawn


def _heatmap(panel: Panel) -> _Builder:
    color = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64)
    axis = heatmap.YAxisConfig().unit(panel.unit)
    # Buckets come counted from Prometheus; Grafana must not count them again.
    drawn = heatmap.Panel().calculate(False).color(color).y_axis(axis)  # noqa: FBT003  the builder has no other way
    return drawn.cell_values(heatmap.CellValues().unit("none")).show_tooltip()


def _table(_panel: Panel) -> _Builder:
    hidden = {"Time": True, "Value": True, "__name__": True}
    drawn = table.Panel().show_header(True)  # noqa: FBT003  the builder has no other way
    return drawn.with_transformation(models.DataTransformerConfig(id_val="organize", options={"excludeByName": hidden}))


_DRAWN: dict[Kind, Callable[[Panel], _Builder]] = {
    "stat": _stat,
    "timeseries": _timeseries,
    "heatmap": _heatmap,
    "table": _table,
}
