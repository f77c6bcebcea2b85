"""Processes killed while they write to a kept pool: what the next one serves."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "kill_kept_pool.py"


@pytest.mark.parametrize("options", [(), ("--power-loss",)])
def test_no_wrong_byte_is_served_after_a_kill(options: tuple[str, ...]) -> None:
    """Killed at random, half of the time within a write, with or without loss of power: found pages are right."""
    command = [sys.executable, TOOL, "--times", "25", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    counts = {what: int(number) for number, what in re.findall(r"(\d+) ([\w ]+)", done.stdout)}
    assert counts["wrong"] == 0
    assert counts["killed in a write"] + counts["killed by time"] == 25
    assert counts["pages served"] > 25
    assert ("altered" in counts) == bool(options)
