"""Standard output that is full, closed or no longer read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

VERSION = [sys.executable, "-m", "hisparse.cli", "--version"]
STREAM = """
import sys
from hisparse.cli.output import guarded_output
with guarded_output():
    for _ in range(3):
        print("x" * 100_000)
        print("progress", file=sys.stderr)
"""


def run_into(command: list[str], redirection: str) -> tuple[int, str]:
    """Exit code and standard error of `command` under a shell's redirection."""
    line = f'"$@" {redirection}; exit ${{PIPESTATUS[0]}}'
    result = subprocess.run(["/bin/bash", "-c", line, "bash", *command], capture_output=True, text=True, check=False)
    return result.returncode, result.stderr


@pytest.mark.parametrize("command", [VERSION, [sys.executable, "-c", STREAM]])
@pytest.mark.parametrize(
    ("redirection", "code", "sentence"),
    [
        (">/dev/full", 2, "error: standard output can't be written: No space left on device\n"),
        (">&-", 2, "error: standard output can't be written: it is closed\n"),
        ("| head -c 0", 141, ""),
    ],
)
def test_output_that_fails_is_one_sentence(command: list[str], redirection: str, code: int, sentence: str) -> None:
    """A full or closed standard output is said in one line with code 2; a reader that has gone needs no word."""
    returned, stderr = run_into(command, redirection)
    assert returned == code
    assert stderr.removeprefix("progress\n").removesuffix("progress\n") == sentence


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_lost_messages_end_nothing(redirection: str) -> None:
    """What standard error can't take is dropped, and the run goes on to its end."""
    assert run_into([sys.executable, "-c", STREAM], f">/dev/null {redirection}") == (0, "")


def test_closed_descriptors_are_not_reused(tmp_path: Path) -> None:
    """A file opened later never becomes standard error, so no library's warning ends up in it."""
    code = f"""
import json
from hisparse.cli.output import guarded_output
with guarded_output(), open({str(tmp_path / "pool")!r}, "w") as pool:
    print(json.dumps(pool.fileno()))
"""
    result = subprocess.run(
        ["/bin/bash", "-c", '"$@" <&- 2>&-', "bash", sys.executable, "-c", code], capture_output=True, check=True
    )
    assert json.loads(result.stdout) > 2


def test_characters_an_encoding_lacks_become_escapes() -> None:
    """Text is written in every encoding, not cut off by the first character outside it."""
    code = "from hisparse.cli.output import guarded_output\nwith guarded_output(): print('a\\u4e00b')"
    command = ["/usr/bin/env", "PYTHONIOENCODING=latin-1", sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "a\\u4e00b\n"
