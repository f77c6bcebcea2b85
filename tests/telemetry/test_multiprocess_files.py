"""Files of several processes: broken, poisonous, contradicting, in a directory that cannot be used, and their size."""

from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.mmap_dict import MmapedDict

from hisparse.telemetry.multiprocess import VARIABLE, shared_registry
from hisparse.telemetry.prometheus import registry_text

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
Parse = Callable[[str], Series]
Process = Callable[..., str]
HITS = ("vllm:hisparse_cache_hits_total", frozenset({("model_name", "m"), ("engine", "0")}))


def test_a_broken_file_is_left_out_and_counted(
    run: Process, folder: Path, parse: Parse, caplog: pytest.LogCaptureFixture
) -> None:
    """Garbage, an empty file and one of no known name cost their own values only; the scrape says how many."""
    run("step(TelemetryPipeline(model_name='m'), 0, hits=4, usage=0.5); os._exit(0)")
    (folder / "gauge_all_99.db").write_bytes(b"\x7f garbage" * 100)
    (folder / "counter_98.db").write_bytes(b"")
    (folder / "gauge.db").write_bytes(b"\0" * 64)
    registry = shared_registry()
    assert registry is not None
    for _ in range(2):
        series = parse(generate_latest(registry).decode())
        assert series[HITS] == 4
        assert series["hisparse_telemetry_unreadable_files", frozenset()] >= 2
    assert len([record for record in caplog.records if "counter_98.db" in record.getMessage()]) == 1


@pytest.mark.parametrize(
    "key",
    [
        '["bad", "bad_total", {"a": 5}, "Help."]',
        '["bad", "bad_total", {"a": "\\ud800"}, "Help."]',
        '["bad", "bad_total", {"a b": "x"}, "Help."]',
        '["bad", "bad total\\n", {}, "Help."]',
        '["bad", "bad_total", {"a": "x"}, null]',
    ],
)
def test_a_file_that_nobody_could_write_out_is_left_out(run: Process, folder: Path, parse: Parse, key: str) -> None:
    """A file that can be read and holds what is no text of a scrape costs its own values only."""
    run("step(TelemetryPipeline(model_name='m'), 0, hits=4, usage=0.5); os._exit(0)")
    file = MmapedDict(str(folder / "counter_99.db"))  # type: ignore[no-untyped-call]  # the client leaves it untyped
    file.write_value(key, 1.0, 0.0)  # type: ignore[no-untyped-call]  # same reason
    file.close()  # type: ignore[no-untyped-call]  # same reason
    registry = shared_registry()
    assert registry is not None
    series = parse(registry_text(registry).decode())
    assert series[HITS] == 4
    assert series["hisparse_telemetry_unreadable_files", frozenset()] == 1


def test_files_that_contradict_each_other_are_not_both_shown(run: Process, folder: Path, parse: Parse) -> None:
    """Where two files are good alone and not together, the first one stands, and the other is counted."""
    run("step(TelemetryPipeline(model_name='m'), 0, hits=4, usage=0.5); os._exit(0)")
    for kind, le in (("histogram_98", "1"), ("summary_99", "x")):
        file = MmapedDict(str(folder / f"{kind}.db"))  # type: ignore[no-untyped-call]  # the client leaves it untyped
        file.write_value(f'["odd", "odd_bucket", {{"le": "{le}"}}, "Help."]', 1.0, 0.0)  # type: ignore[no-untyped-call]  # same reason
        file.close()  # type: ignore[no-untyped-call]  # same reason
    registry = shared_registry()
    assert registry is not None
    series = parse(registry_text(registry).decode())
    assert series[HITS] == 4
    assert series["odd_bucket", frozenset({("le", "1.0")})] == 1
    assert series["hisparse_telemetry_unreadable_files", frozenset()] == 1


@pytest.mark.parametrize("name", ["missing", '"quoted"', "a/file"])
def test_an_unusable_directory_is_an_error_in_the_log(run: Process, tmp_path: Path, name: str) -> None:
    """With a directory that is none, the process says so and goes on with the totals of its own registry."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    printed = run(
        """
        pipeline = TelemetryPipeline(model_name="m")
        step(pipeline, 0, hits=4, usage=0.5)
        labels = {"model_name": "m", "engine": "0"}
        print("hits", pipeline.registry.get_sample_value("vllm:hisparse_cache_hits_total", labels))
        """,
        **{VARIABLE: f"{tmp_path}/{name}"},
    )
    assert "hits 4" in printed
    assert VARIABLE in printed
    assert "Set it to an existing directory" in printed


def test_a_variable_that_comes_too_late_is_an_error_in_the_log(run: Process, tmp_path: Path) -> None:
    """Set after prometheus_client was imported it has no effect there, and the process says so and goes on."""
    printed = run(f"""
    import subprocess
    code = "import os, prometheus_client; os.environ['{VARIABLE}'] = {str(tmp_path)!r}; " \\
           "import hisparse.telemetry as t; t.TelemetryPipeline(model_name='m').publish({{}})"
    environment = {{key: value for key, value in os.environ.items() if key != "{VARIABLE}"}}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    print(done.stderr)
    """)
    assert "prometheus_client was imported before" in printed


def test_without_the_variable_a_process_serves_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable, or one that names no directory, means no shared registry."""
    monkeypatch.delenv(VARIABLE, raising=False)
    assert shared_registry() is None
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing"))
    assert shared_registry() is None


def test_files_of_all_metrics_stay_small(run: Process, folder: Path) -> None:
    """A process with 8 engines and every metric of this version writes less than 4 MiB."""
    run("TelemetryPipeline(model_name='m', engines=range(8))")
    assert 0 < sum(file.stat().st_size for file in folder.glob("*.db")) < 4 << 20
