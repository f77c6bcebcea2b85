"""The alert rules: that they fire, that they stay quiet, that their tests would notice, and that each is explained."""

import re
import shutil
import subprocess
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hisparse.dashboards import AlertSettings, alerts, rules_yaml
from hisparse.dashboards.alerts import KNOWN_WINDOW
from hisparse.errors import SettingError

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "dashboards" / "alerts.yml"
TESTS = Path(__file__).with_name("alerts_test.yml")
NAMES = [alert.name for alert in alerts()]
# Next to each setting, on either side: some series of the tests lie between the two.
OTHER_SETTINGS = [
    ("hit_ratio", 0.4),
    ("hit_ratio", 0.6),
    ("misses_per_second", 800),
    ("misses_per_second", 1200),
    ("link_ratio", 0.85),
    ("link_ratio", 0.95),
    ("load_failure_ratio", 0.005),
    ("load_failure_ratio", 0.015),
    ("stale_seconds", 100),
    ("stale_seconds", 150),
    ("failed_loads", 2),
    ("failed_loads", 200),
    ("skipped_items", 40),
    ("pending", "5m"),
    ("pending", "20m"),
    ("failures_pending", "1m"),
    ("failures_pending", "15m"),
    ("stale_pending", "0s"),
    ("stale_pending", "5m"),
    ("errors_window", "5m"),
    ("errors_window", "1h"),
]


def run_tests(promtool: Path, folder: Path, rules: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of the alerts against `rules`."""
    shutil.copy(TESTS, folder / "alerts_test.yml")
    return run_prepared(promtool, folder, rules)


def run_alone(promtool: Path, folder: Path, rules: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Run only the tests of the alerts among `rules`, against those rules: the tests of all alerts take 5 s."""
    names = {rule["alert"] for rule in rules}
    tests = yaml.safe_load(TESTS.read_text(encoding="utf-8"))
    tests["tests"] = [
        test for test in tests["tests"] if names & {case["alertname"] for case in test["alert_rule_test"]}
    ]
    (folder / "alerts_test.yml").write_text(yaml.safe_dump(tests), encoding="utf-8")
    return run_prepared(promtool, folder, yaml.safe_dump({"groups": [{"name": "hisparse", "rules": rules}]}))


def rules_of(text: str) -> list[dict[str, Any]]:
    """Return the rules that a file has."""
    (group,) = yaml.safe_load(text)["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def run_prepared(promtool: Path, folder: Path, rules: str) -> subprocess.CompletedProcess[str]:
    """Run the tests that lie in `folder` against `rules`."""
    (folder / "alerts.yml").write_text(rules, encoding="utf-8")
    command = [promtool, "test", "rules", folder / "alerts_test.yml"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_each_alert_fires_and_stays_quiet(promtool: Path, tmp_path: Path) -> None:
    """The committed rules are valid and pass their tests."""
    subprocess.run([promtool, "check", "rules", RULES], check=True, capture_output=True)
    done = run_tests(promtool, tmp_path, RULES.read_text(encoding="utf-8"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("name", "value"), OTHER_SETTINGS)
def test_another_threshold_is_noticed(promtool: Path, tmp_path: Path, name: str, value: Any) -> None:
    """The tests of the alerts fail as soon as a threshold or a duration is another one."""
    committed = rules_of(RULES.read_text(encoding="utf-8"))
    rules = rules_of(rules_yaml(replace(AlertSettings(), **{name: value})))
    done = run_alone(promtool, tmp_path, [rule for rule in rules if rule not in committed])
    assert done.returncode == 1
    assert "FAILED" in done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_alone_passes_its_tests(promtool: Path, tmp_path: Path, name: str) -> None:
    """Run as the test above runs those that differ, a committed rule passes."""
    rules = [rule for rule in rules_of(RULES.read_text(encoding="utf-8")) if rule["alert"] == name]
    done = run_alone(promtool, tmp_path, rules)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_setting_has_another_value_to_notice() -> None:
    """No setting of the alerts is left out of the test above, but for the range of rates."""
    assert {name for name, _ in OTHER_SETTINGS} | {"window"} == {field.name for field in fields(AlertSettings)}


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_is_tested_both_ways(name: str) -> None:
    """For each alert there is a time at which it fires and one at which nothing fires."""
    cases = [
        case
        for test in yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"]
        for case in test["alert_rule_test"]
        if case["alertname"] == name
    ]
    assert {bool(case.get("exp_alerts")) for case in cases} == {True, False}


def test_the_file_holds_the_rules() -> None:
    """Read as YAML, the file has each alert with its expression, duration, severity and summary."""
    (group,) = yaml.safe_load(rules_yaml())["groups"]
    assert [
        (rule["alert"], rule["expr"], rule["for"], rule["labels"], rule["annotations"]["summary"])
        for rule in group["rules"]
    ] == [
        (alert.name, alert.expression, alert.pending, {"severity": alert.severity}, alert.summary) for alert in alerts()
    ]
    assert all("$labels.instance" in alert.summary for alert in alerts())
    assert [alert.name for alert in alerts() if "$value" not in alert.summary] == ["HiSparseDown"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("window", "5 minutes", "window must be a duration of Prometheus longer than 0s, such as '5m'"),
        ("errors_window", "0s", "errors_window must be a duration of Prometheus longer than 0s"),
        ("window", "", "window must be a duration"),
        ("pending", "1m1h", "pending must be a duration of Prometheus, such as '5m' or '1h30m', got '1m1h'"),
        ("stale_pending", "1.5m", "stale_pending must be a duration"),
        ("failures_pending", 60, "failures_pending must be a duration of Prometheus, such as '5m' or '1h30m', got 60"),
        ("hit_ratio", 50, "hit_ratio must be 0 to 1, got 50"),
        ("link_ratio", -0.1, "link_ratio must be 0 to 1, got -0.1"),
        ("load_failure_ratio", float("nan"), "load_failure_ratio must be 0 to 1, got nan"),
        ("misses_per_second", float("inf"), "misses_per_second must be a finite number >= 0, got inf"),
        ("failed_loads", "5", "failed_loads must be a finite number >= 0, got '5'"),
        ("skipped_items", True, "skipped_items must be a finite number >= 0, got True"),
    ],
)
def test_a_setting_without_a_meaning_is_refused(name: str, value: Any, message: str) -> None:
    """A duration that Prometheus would not take, a ratio beyond 1 or a number that is none is named at once."""
    with pytest.raises(SettingError, match=f"^{re.escape(message)}"):
        replace(AlertSettings(), **{name: value})
    with pytest.raises(SettingError, match="runbook must be the address of a page, got ''"):
        rules_yaml(runbook="")


def test_another_runbook_is_named(promtool: Path, tmp_path: Path) -> None:
    """Each alert links to its paragraph at the address that is given."""
    rules = rules_yaml(runbook="https://wiki.example/hisparse")
    assert rules.count('runbook_url: "https://wiki.example/hisparse#hisparse') == len(NAMES)
    assert run_tests(promtool, tmp_path, rules).returncode == 1


def test_durations_as_prometheus_writes_them_are_taken(promtool: Path, tmp_path: Path) -> None:
    """Units from years to milliseconds make rules that promtool accepts."""
    file = tmp_path / "alerts.yml"
    file.write_text(rules_yaml(AlertSettings(window="1h30m", errors_window="1w2d", pending="1d", stale_pending="0s")))
    subprocess.run([promtool, "check", "rules", file], check=True, capture_output=True)


def test_each_alert_has_its_paragraph() -> None:
    """The runbook has one section of a few sentences for each alert and no other, and each alert links to its own."""
    page = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    parts = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL))
    assert list(parts) == NAMES
    assert all(len(re.findall(r"\.\s", text)) >= 4 for text in parts.values())
    for rule in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"][0]["rules"]:
        file, anchor = rule["annotations"]["runbook_url"].split("#")
        assert (ROOT / file).is_file()
        assert anchor == rule["alert"].lower()


def test_the_documented_thresholds_are_the_settings() -> None:
    """The table of alerts names each alert once, with the default thresholds in order."""
    page = (ROOT / "docs" / "dashboards.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(HiSparse\w+)` \| (.+) \|$", page, flags=re.MULTILINE))
    assert list(rows) == NAMES
    chosen = AlertSettings()
    shown = {
        NAMES[0]: (f"{chosen.hit_ratio:g}", f"{chosen.misses_per_second:,}", chosen.pending.removesuffix("m")),
        NAMES[1]: (f"{chosen.link_ratio:g}", chosen.pending.removesuffix("m")),
        NAMES[2]: (
            f"{chosen.load_failure_ratio:g}",
            f"{chosen.failed_loads:g}",
            chosen.failures_pending.removesuffix("m"),
        ),
        NAMES[3]: (f"{chosen.stale_seconds:g}",),
        NAMES[4]: (chosen.errors_window.removesuffix("m"),),
        NAMES[5]: (KNOWN_WINDOW.removesuffix("d"), chosen.failures_pending.removesuffix("m")),
    }
    assert {name: tuple(re.findall(r"\d[\d.,]*", text)) for name, text in rows.items()} == shown
