"""A real Prometheus server for tests: it scrapes ports of this machine and answers queries."""

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

SCRAPE_SECONDS = 0.5
DOCUMENTED = Path(__file__).resolve().parents[1] / "docs" / "dashboards.md"
WAIT_SECONDS = 30.0
PORTS = 24
JOB = "hisparse"

Labels = frozenset[tuple[str, str]]


def labels(**values: str) -> Labels:
    """Return labels as the keys of an answer have them."""
    return frozenset(values.items())


def documented_scrape() -> dict[str, Any]:
    """Return the scrape configuration that the documentation shows."""
    block = re.search(r"```yaml\n(scrape_configs:\n.*?)```", DOCUMENTED.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert block is not None
    (scrape,) = yaml.safe_load(block[1])["scrape_configs"]
    return dict(scrape)


def _targets(*ports: int) -> dict[str, list[str]]:
    return {"targets": [f"127.0.0.1:{port}" for port in ports]}


def _key(metric: Mapping[str, str]) -> str:
    left_out = {"__name__", "job", "instance", "model_name", "engine"}
    own = sorted(f"{name}={text}" for name, text in metric.items() if name not in left_out)
    return ",".join([metric["__name__"], *own])


class LivePrometheus:
    """A server that scrapes `PORTS` ports of its own choice twice a second; most of them stay closed.

    One more port is scraped as the documentation says.

    The ports are known before it starts because it looks for new targets every five seconds only. They are kept bound
    and not listened on, so that nobody else gets one; whoever listens with SO_REUSEADDR, as the standard library's
    servers do, may.
    """

    def __init__(self, program: Path, folder: Path, *, rules: str = "", ports: int = PORTS) -> None:
        """Start `program` with its data in `folder` and wait until it answers."""
        self._resources = ExitStack()
        self._ports = [self._reserve() for _ in range(ports)]
        self.documented_port = self._reserve()
        self.url = f"http://127.0.0.1:{self._reserve()}"
        self._log = folder / "prometheus.log"
        (folder / "rules.yml").write_text(rules, encoding="utf-8")
        (folder / "prometheus.yml").write_text(json.dumps(self._configuration()), encoding="utf-8")
        self._process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
                "--log.level=warn",
            ],
            stdout=self._resources.enter_context(self._log.open("w", encoding="utf-8")),
            stderr=subprocess.STDOUT,
        )
        self.wait(self._is_ready, "Prometheus answers")

    def _reserve(self) -> int:
        held = self._resources.enter_context(socket.socket())
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port

    def _configuration(self) -> dict[str, Any]:
        interval = f"{int(SCRAPE_SECONDS * 1000)}ms"
        documented = documented_scrape() | {"job_name": "documented", "scrape_interval": interval}
        return {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {"job_name": JOB, "static_configs": [_targets(*self._ports)]},
                documented | {"static_configs": [_targets(self.documented_port)]},
            ],
        }

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            pytest.fail(f"Prometheus ended: {self._log.read_text(encoding='utf-8')[-2000:]}")
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as response:  # noqa: S310 - a loopback address
                return bool(response.status == 200)
        except OSError:
            return False

    def take_port(self) -> int:
        """Return a port that is scraped and that no test has had before."""
        return self._ports.pop()

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Return what `condition` returns once it is true; fail the test if that takes too long."""
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until:
            if found := condition():
                return found
            time.sleep(0.05)
        return pytest.fail(f"waited {WAIT_SECONDS:.0f} seconds until {what}")

    def wait_for_scrape(self, port: int) -> None:
        """Wait until everything that is served on `port` now is stored."""
        up = f'up{{instance="127.0.0.1:{port}"}}'
        # A scrape's time may be moved by 2 ms to keep the distance to the one before.
        scraped = f"timestamp({up}) > {time.time() + 0.003!r} and {up} == 1"
        self.wait(lambda: self.query(scraped), f"port {port} is scraped")

    def query(self, expression: str) -> dict[Labels, float]:
        """Return the series of an instant query by their labels, without those of the scrape configuration."""
        found = {}
        for series in self._get("query", query=expression)["result"]:
            named = {name: text for name, text in series["metric"].items() if name not in {"job", "instance"}}
            found[labels(**named)] = float(series["value"][1])
        return found

    def value(self, expression: str) -> float:
        """Return the value of an instant query that has one series."""
        (value,) = self.query(expression).values()
        return value

    def stored(self, port: int) -> dict[str, float]:
        """Return what is stored of a port as ``name,label=value,...`` without model and engine."""
        # The last scrape that succeeded, should a later one have taken too long.
        found = self._get("query", query=f'last_over_time({{instance="127.0.0.1:{port}"}}[20s])')["result"]
        return {_key(series["metric"]): float(series["value"][1]) for series in found}

    def history(self, port: int) -> dict[str, list[float]]:
        """Return all values of the last minute of each series, named as `stored` does."""
        found = self._get("query", query=f'{{instance="127.0.0.1:{port}"}}[1m]')["result"]
        return {_key(series["metric"]): [float(text) for _, text in series["values"]] for series in found}

    def metadata(self, port: int) -> dict[str, str]:
        """Return the type of each metric family of a port as its exposition states it."""
        found = self._get("targets/metadata", match_target=f'{{instance="127.0.0.1:{port}"}}')
        return {item["metric"]: item["type"] for item in found}

    def alerts(self) -> list[Mapping[str, Any]]:
        """Return the pending and firing alerts."""
        found: list[Mapping[str, Any]] = self._get("alerts")["alerts"]
        return found

    def _get(self, path: str, **arguments: str) -> Any:
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(address, timeout=10) as response:  # noqa: S310 - a loopback address
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            with error:
                return pytest.fail(f"{path} {arguments}: {error.read().decode()}")

    def close(self) -> None:
        """End the server and wait for it."""
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._resources.close()

    def __enter__(self) -> Self:
        """Return the server; leaving the block ends it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()
