"""Print where the programs `prometheus` and `promtool` are: on PATH, or unpacked under build/ from Debian's package.

Needs no root and installs nothing: apt fetches the package, dpkg-deb unpacks it. What is unpacked stays for the next
call; what does not start is fetched again. Safe to call several times at once.
"""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent / "build"
PROGRAMS = ("prometheus", "promtool")
PACKAGE = "prometheus"
HOW_TO = (
    "install Prometheus so that prometheus and promtool are on PATH "
    "(Debian, Ubuntu: apt install prometheus; macOS: brew install prometheus; elsewhere: its release archive)"
)
APT_SECONDS = 300


class MissingError(Exception):
    """There are no programs, and none could be fetched; the message says why and what to do."""


def starts(program: str | Path) -> bool:
    """Tell whether `program` is the one of its name and runs on this machine."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603  it is what was looked for
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and f"{Path(program).name}, version" in done.stdout + done.stderr


def find(build: Path) -> list[Path] | None:
    """Return the programs on PATH or, where one is missing there, those under `build`; None if there are none."""
    on_path = [Path(found) for name in PROGRAMS if (found := shutil.which(name)) and starts(found)]
    unpacked = [build / PACKAGE / "usr" / "bin" / name for name in PROGRAMS]
    for programs in (on_path, unpacked):
        if len(programs) == len(PROGRAMS) and all(program.is_file() and starts(program) for program in programs):
            return programs
    return None


def fetch(build: Path) -> list[Path]:
    """Return the programs, fetched and unpacked under `build` where they are missing.

    Raises:
        MissingError: The machine has no apt, or apt or the programs failed.
    """
    with _alone(build / f"{PACKAGE}.lock"):
        if found := find(build):
            return found
        if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
            raise MissingError(f"this machine has neither Prometheus nor apt: {HOW_TO}")
        for left in build.glob(f"{PACKAGE}-*"):  # by a call that was killed: nobody else is here
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=build, prefix=f"{PACKAGE}-") as name:
            unpacked = _unpack(_download(Path(name)), Path(name) / "unpacked")
            # A broken earlier one has to go first; a call that is killed leaves nothing, or all of it.
            shutil.rmtree(build / PACKAGE, ignore_errors=True)
            unpacked.rename(build / PACKAGE)
    if found := find(build):
        return found
    raise MissingError(f"Debian's package of Prometheus was unpacked, but its programs do not start here: {HOW_TO}")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Keep other calls out until the block ends."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(folder: Path) -> Path:
    """Return the package, fetched by the machine's own lists or, where they are empty or old, by fresh ones."""
    package = ["download", PACKAGE]
    # Lists of the machine are root's; a private copy of them is anyone's. Sources and mirrors stay the machine's.
    private = [f"Dir::State::Lists={folder}/lists", f"Dir::Cache={folder}/cache", "Acquire::Languages=none"]
    for place in ("lists/partial", "cache/archives/partial"):
        (folder / place).mkdir(parents=True)
    output = ""
    for options, command in (([], package), (private, ["update"]), (private, package)):
        output = _apt(options, command, folder)
        if found := sorted(folder.glob(f"{PACKAGE}_*.deb")):
            return found[0]
    raise MissingError(f"apt could not fetch the package {PACKAGE} ({_reason(output)}): {HOW_TO}")


def _apt(options: Sequence[str], command: Sequence[str], folder: Path) -> str:
    """Run apt-get in `folder`; its output is all that is of interest, the file it leaves says whether it worked."""
    sandbox = ["APT::Sandbox::User=root"] if os.geteuid() == 0 else []  # another user cannot write to the folder
    every = ["Acquire::Retries=1", "Acquire::http::Timeout=20", *sandbox, *options]
    words = ["apt-get", "-q", *(word for option in every for word in ("-o", option)), *command]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=APT_SECONDS, check=False)  # noqa: S603  fixed words
    except subprocess.TimeoutExpired:
        return f"E: apt-get {command[0]} took longer than {APT_SECONDS} seconds"
    return done.stdout + done.stderr


def _reason(output: str) -> str:
    errors = [line[2:].strip() for line in output.splitlines() if line.startswith("E:")]
    return errors[0] if errors else "it gave no reason"


def _unpack(package: Path, folder: Path) -> Path:
    done = subprocess.run(["dpkg-deb", "-x", package, folder], capture_output=True, text=True, check=False)  # noqa: S603, S607  dpkg-deb is looked up as apt-get is
    if done.returncode:
        raise MissingError(f"dpkg-deb could not unpack {package.name} ({done.stderr.strip()}): {HOW_TO}")
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one path a line, or say on stderr what is missing and return 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--find", action="store_true", help="fetch nothing; exit 1 if the programs are not there")
    parser.add_argument("--build", type=Path, default=BUILD, help="where to unpack; build/ beside this folder")
    parsed = parser.parse_args(arguments)
    try:
        programs = find(parsed.build) if parsed.find else fetch(parsed.build)
    except (MissingError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if programs is None:
        print(f"no prometheus and promtool: run python tools/get_prometheus.py, or {HOW_TO}", file=sys.stderr)
        return 1
    print(*programs, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
