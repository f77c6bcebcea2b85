"""Totals of several processes through PROMETHEUS_MULTIPROC_DIR, each process a real one."""

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from hisparse.telemetry import start_metrics_server

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
Parse = Callable[[str], Series]
Process = Callable[..., str]


def value_of(series: Series, name: str, engine: int = 0, **labels: str) -> float | None:
    """Return one series of model `m`."""
    return series.get((name, frozenset({"model_name": "m", "engine": str(engine), **labels}.items())))


def test_two_processes_are_one_scrape(run: Process, scrape: Callable[[str], str], parse: Parse) -> None:
    """What two processes publish, for one engine each and for one in common, a third serves as exact totals."""
    script = """
    with TelemetryPipeline(model_name="m", engines=(0, 1, 2)) as pipeline:
        for _ in range(5):
            step(pipeline, {engine}, hits=10, usage=0.5, seconds=[0.001, 0.3], top_k=64)
        step(pipeline, 2, hits={engine} + 1, usage=0.{engine}25)
        os._exit(0)
    """
    run(script.format(engine=0))
    run(script.format(engine=1))
    with start_metrics_server() as server:
        series = parse(scrape(server.url))
    client = CollectorRegistry()
    MultiProcessCollector(client)  # type: ignore[no-untyped-call]  # the client leaves it untyped
    del series["hisparse_telemetry_unreadable_files", frozenset()]
    assert series == parse(generate_latest(client).decode()), "any endpoint of the client shows the same"
    for engine in (0, 1):
        assert value_of(series, "vllm:hisparse_cache_hits_total", engine) == 50
        assert value_of(series, "vllm:hisparse_cache_misses_total", engine) == 5
        assert value_of(series, "hisparse_hot_selections_total", engine, outcome="hit", group="3") == 50
        assert value_of(series, "hisparse_hot_selections_total", engine, outcome="miss", group="3") == 0
        assert value_of(series, "hisparse_hot_gather_seconds_count", engine) == 10
        assert value_of(series, "hisparse_hot_gather_seconds_sum", engine) == pytest.approx(1.505)
        assert value_of(series, "hisparse_hot_gather_seconds_bucket", engine, le="0.001") == 5
        assert value_of(series, "hisparse_hot_gather_seconds_bucket", engine, le="+Inf") == 10
        assert value_of(series, "vllm:kv_offload_total_bytes_total", engine, transfer_type="CPU_to_GPU") == 500
        assert value_of(series, "vllm:hisparse_host_cache_usage_perc", engine) == 0.5
        info = [
            value
            for (name, labels), value in series.items()
            if name == "hisparse_hot_config_info" and {("engine", str(engine)), ("top_k", "64")} <= labels
        ]
        assert info == [1]
    assert value_of(series, "vllm:hisparse_cache_hits_total", 2) == 3
    assert value_of(series, "vllm:hisparse_host_cache_usage_perc", 2) == 0.125
    assert not [labels for _, labels in series if "pid" in dict(labels)]


def test_every_metric_is_there_before_the_first_step(run: Process, shared: Callable[[], Series]) -> None:
    """A process that only makes a pipeline shows every family that its own registry would show, at 0."""
    printed = run("""
    pipeline = TelemetryPipeline(model_name="m", engines=(0, 1))
    names = {sample.name for family in pipeline.registry.collect() for sample in family.samples
             if "model_name" in sample.labels}
    print(*names, flush=True)
    os._exit(0)
    """)
    series = shared()
    assert {name for name, labels in series if dict(labels).get("model_name")} == set(printed.split())
    assert {value for (_, labels), value in series.items() if dict(labels).get("model_name")} == {0}
    assert value_of(series, "vllm:hisparse_host_cache_usage_perc", 1) == 0


def test_pipelines_made_again_in_one_process_add_up(run: Process, shared: Callable[[], Series]) -> None:
    """In one process, pipelines after one another and beside one another, on one registry or two, lose nothing."""
    run("""
    for _ in range(3):
        with TelemetryPipeline(model_name="m", registry=CollectorRegistry()) as pipeline:
            step(pipeline, 0, hits=1, usage=0.5, seconds=[0.001])
    one = CollectorRegistry()
    pipelines = [TelemetryPipeline(model_name="m", registry=r) for r in (one, one, CollectorRegistry(), None)]
    for hits in (10, 20):
        for pipeline in pipelines:
            step(pipeline, 0, hits=hits, usage=0.25, seconds=[0.001, 2.0])
    """)
    series = shared()
    assert value_of(series, "vllm:hisparse_cache_hits_total") == 3 + 4 * 30
    assert value_of(series, "hisparse_hot_gather_seconds_count") == 3 + 16
    assert value_of(series, "hisparse_hot_gather_seconds_sum") == pytest.approx(3 * 0.001 + 8 * 2.001)
    assert value_of(series, "vllm:hisparse_host_cache_usage_perc") == 0.25


def test_a_fork_counts_what_it_adds(run: Process, shared: Callable[[], Series]) -> None:
    """A process forked in the middle adds only its own steps, and its parent goes on."""
    run("""
    pipeline = TelemetryPipeline(model_name="m")
    step(pipeline, 0, hits=1, usage=0.5)
    child = os.fork()
    for _ in range(3):
        step(pipeline, 0, hits=100 if child else 1000, usage=0.75)
    if child:
        os.waitpid(child, 0)
    os._exit(0)
    """)
    assert value_of(shared(), "vllm:hisparse_cache_hits_total") == 1 + 300 + 3000


def test_a_restarted_process_shows_its_own_level(run: Process, shared: Callable[[], Series]) -> None:
    """After a process died at usage 0.8, its successor's 0.0 is what a scrape shows, and the counters go on."""
    script = "step(TelemetryPipeline(model_name='m'), 0, hits=1, usage={}); os._exit(0)"
    run(script.format(0.8))
    run("TelemetryPipeline(model_name='m'); os._exit(0)")
    assert value_of(shared(), "vllm:hisparse_host_cache_usage_perc") == 0.8, "nothing newer was published"
    run(script.format(0.0))
    series = shared()
    assert value_of(series, "vllm:hisparse_host_cache_usage_perc") == 0
    assert value_of(series, "vllm:hisparse_cache_hits_total") == 2


def test_the_latest_level_of_one_engine_wins_whoever_published_it(run: Process, shared: Callable[[], Series]) -> None:
    """Two processes that publish for one engine in turn: an unchanged level published last is the one shown."""
    run("""
    import subprocess
    pipeline = TelemetryPipeline(model_name="m")
    step(pipeline, 0, hits=0, usage=0.5)
    other = "from hisparse.telemetry import *; s = HiSparseKVConnectorStats(); s.record_host_usage(0.75, 0); "
    other += "TelemetryPipeline(model_name='m').publish({'HiSparse': s})"
    subprocess.run([sys.executable, "-c", other], check=True)
    step(pipeline, 0, hits=0, usage=0.5)
    os._exit(0)
    """)
    assert value_of(shared(), "vllm:hisparse_host_cache_usage_perc") == 0.5


def test_closing_ends_levels_and_keeps_counts(run: Process, shared: Callable[[], Series]) -> None:
    """After close the engine's gauges, info included, are 0; its counters stay, as they do when a process ends."""
    run("with TelemetryPipeline(model_name='m') as p: step(p, 0, hits=4, usage=0.5, top_k=64)")
    series = shared()
    assert value_of(series, "vllm:hisparse_host_cache_usage_perc") == 0
    assert {value for (name, _), value in series.items() if name == "hisparse_hot_config_info"} == {0}
    assert value_of(series, "vllm:hisparse_cache_hits_total") == 4


@pytest.mark.parametrize(("closing", "shown"), [("second", 0.25), ("first", 0.5)])
def test_closing_one_of_two_users_leaves_the_others_level(
    run: Process, shared: Callable[[], Series], *, closing: str, shown: float
) -> None:
    """Two registries of a process speak of one engine: when one closes, the level is what the other said last."""
    run(f"""
    first, second = (TelemetryPipeline(model_name="m", registry=CollectorRegistry()) for _ in range(2))
    step(first, 0, hits=1, usage=0.25, top_k=64)
    step(second, 0, hits=1, usage=0.5, top_k=64)
    {closing}.close()
    os._exit(0)
    """)
    series = shared()
    assert value_of(series, "vllm:hisparse_host_cache_usage_perc") == shown
    assert {value for (name, _), value in series.items() if name == "hisparse_hot_config_info"} == {1}


@pytest.mark.parametrize("published", ["", "step(pipeline, 0, hits=1, usage=0.5)"])
def test_a_forked_child_that_closes_leaves_its_parents_level(
    run: Process, shared: Callable[[], Series], published: str
) -> None:
    """A child takes back its own level, if it said any, and its parent's is shown although it says nothing new."""
    run(f"""
    pipeline = TelemetryPipeline(model_name="m")
    step(pipeline, 0, hits=1, usage=0.25, top_k=64)
    if not os.fork():
        {published}
        pipeline.close()
        os._exit(0)
    os.wait()
    os._exit(0)
    """)
    series = shared()
    assert value_of(series, "vllm:hisparse_host_cache_usage_perc") == 0.25
    assert {value for (name, _), value in series.items() if name == "hisparse_hot_config_info"} == {1}


def test_a_process_that_closes_leaves_what_others_said_since(run: Process, shared: Callable[[], Series]) -> None:
    """A level is taken back as of its first moment: a sibling's later one stands, a dead predecessor's does not."""
    dead = "step(TelemetryPipeline(model_name='m'), 0, hits=1, usage=0.75); os._exit(0)"
    run(dead)
    run("""
    pipeline = TelemetryPipeline(model_name="m")
    step(pipeline, 0, hits=1, usage=0.5)
    pipeline.close()
    os._exit(0)
    """)
    assert value_of(shared(), "vllm:hisparse_host_cache_usage_perc") == 0
    run("""
    import subprocess
    pipeline = TelemetryPipeline(model_name="m")
    step(pipeline, 0, hits=1, usage=0.5)
    other = "from hisparse.telemetry import *; s = HiSparseKVConnectorStats(); s.record_host_usage(0.25, 0); "
    other += "import os; TelemetryPipeline(model_name='m').publish({'HiSparse': s}); os._exit(0)"
    subprocess.run([sys.executable, "-c", other], check=True)
    step(pipeline, 0, hits=1, usage=0.5)
    pipeline.close()
    os._exit(0)
    """)
    assert value_of(shared(), "vllm:hisparse_host_cache_usage_perc") == 0.25


def test_an_info_metric_moves_to_its_new_labels(run: Process, shared: Callable[[], Series]) -> None:
    """When the labels change, the new series is 1 and the old one 0, because nothing can be removed from a file."""
    run("""
    pipeline = TelemetryPipeline(model_name="m")
    step(pipeline, 0, hits=1, usage=0.5, top_k=64)
    step(pipeline, 0, hits=1, usage=0.5, top_k=128)
    os._exit(0)
    """)
    info = {
        dict(labels)["top_k"]: value for (name, labels), value in shared().items() if name == "hisparse_hot_config_info"
    }
    assert info == {"64": 0, "128": 1}


@pytest.mark.parametrize(
    ("mode", "alive", "dead"), [("livesum", 12, 5), ("sum", 12, 12), ("livemax", 7, 5), ("min", 5, 5)]
)
def test_gauges_combine_by_their_declared_mode(
    run: Process, shared: Callable[[], Series], *, mode: str, alive: float, dead: float
) -> None:
    """Levels 5 and 7 of two processes combine as declared; live modes drop a process that is marked dead."""
    script = """
    mine = Catalogue({{"mine_level": GaugeMetadata("Level.", multiprocess_mode="{mode}")}})
    stats = OffloadingConnectorStats(catalogue=mine)
    stats.set_gauge("mine_level", {level})
    TelemetryPipeline(model_name="m", catalogue=mine).publish({{"mine": stats}})
    print(os.getpid(), flush=True)
    os._exit(0)
    """
    run(script.format(mode=mode, level=5))
    pid = int(run(script.format(mode=mode, level=7)))
    assert value_of(shared(), "mine_level") == alive
    mark_process_dead(pid)  # type: ignore[no-untyped-call]  # the client leaves it untyped
    assert value_of(shared(), "mine_level") == dead


def test_no_poison_reaches_a_file(run: Process, shared: Callable[[], Series]) -> None:
    """NaN, infinite and negative items are skipped and counted, and every value of the files stays good."""
    run("""
    pipeline = TelemetryPipeline(model_name="m")
    for bad in (math.nan, math.inf, -1, "x", None):
        pipeline.publish({"HiSparse": {"cache_hits": [bad, 2], "host_cache_usage_perc": [bad]}})
    os._exit(0)
    """)
    series = shared()
    assert value_of(series, "vllm:hisparse_cache_hits_total") == 10
    assert min(series.values()) >= 0
    assert max(series.values()) < float("inf")
    reasons = {"not_finite": 4, "negative": 2, "wrong_type": 4}
    found = {reason: value_of(series, "hisparse_telemetry_errors_total", reason=reason) for reason in reasons}
    assert found == reasons
