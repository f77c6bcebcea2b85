"""The run script on machines that lack something, each made of a folder of links and stand-ins."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("cat", "cksum", "cut", "dirname", "grep", "ls", "mkdir", "rm", "sh", "tail", "tr")


class Machine:
    """A checkout with only what installing needs, and a PATH with only what POSIX promises."""

    def __init__(self, folder: Path) -> None:
        """Lay out the checkout and the PATH in `folder`."""
        self.checkout = folder / "checkout"
        self.path = folder / "bin"
        self.checkout.mkdir()
        self.path.mkdir()
        for name in ("run", "pyproject.toml", "constraints.txt"):
            shutil.copy2(ROOT / name, self.checkout / name)
        for name in NEEDED:
            (self.path / name).symlink_to(str(shutil.which(name)))

    def put(self, path: Path, script: str) -> None:
        """Write an executable shell script."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def put_python(self, *, venv: str) -> None:
        """Put a Python on the PATH that is this one, except that ``-m venv`` does what `venv` says."""
        self.put(self.path / "python3", f'case "$*" in *"-m venv"*) {venv} ;; esac\nexec {sys.executable} "$@"')

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the script without a home, without pip's settings, and with the PATH of this machine."""
        environment = {"PATH": str(self.path), "PIP_FIND_LINKS": "/nonexistent"}
        command = [self.checkout / "run", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine without Python."""
    return Machine(tmp_path)


def test_help_needs_no_environment(machine: Machine) -> None:
    """Help is printed on a machine that has nothing, and makes nothing."""
    done = machine.run("help")
    assert done.returncode == 0
    assert "usage: ./run COMMAND" in done.stdout
    assert not (machine.checkout / ".venv").exists()


def test_an_unknown_command_is_named(machine: Machine) -> None:
    """A command that does not exist is named, with the ones that do, before anything is installed."""
    done = machine.run("frobnicate")
    assert done.returncode == 2
    assert "there is no command 'frobnicate'" in done.stderr
    assert done.stdout == ""


def test_a_missing_python_is_a_sentence(machine: Machine) -> None:
    """Without Python the script says which version it needs and how to get it."""
    done = machine.run("demo")
    assert done.returncode == 1
    assert "no Python 3.11 or newer found on PATH; install one" in done.stderr


def test_a_stub_is_no_python(machine: Machine) -> None:
    """A name on the PATH that does not start a Python is passed over."""
    machine.put(machine.path / "python3", "exit 127")
    assert "no Python 3.11 or newer found on PATH" in machine.run("demo").stderr


def test_a_python_without_venv_is_a_sentence(machine: Machine) -> None:
    """Where Python cannot make environments, the script names the package that is missing."""
    machine.put(
        machine.path / "python3",
        'case "$*" in *"-m venv"* | *"import ensurepip"*) exit 1 ;; esac\n' + f'exec {sys.executable} "$@"',
    )
    done = machine.run("demo")
    assert done.returncode == 1
    assert "apt install python3-venv" in done.stderr
    assert not (machine.checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("Temporary failure in name resolution", "no package index answered"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("error: something else", "error: something else"),
    ],
)
def test_a_failed_installation_is_explained(machine: Machine, output: str, sentence: str) -> None:
    """A failed installation gives its reason, the log, and no half-made success."""
    pip = f'case "$*" in *--version*) ;; *install*) echo "{output}"; exit 1 ;; esac'
    machine.put(machine.checkout / "pip", pip)
    make = f"mkdir -p {machine.checkout}/.venv/bin; cat {machine.checkout}/pip >{machine.checkout}/.venv/bin/python"
    machine.put_python(venv=f"{make}; {shutil.which('chmod')} +x {machine.checkout}/.venv/bin/python; exit 0")
    done = machine.run("demo")
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "the whole output is in" in done.stderr
    assert output in (machine.checkout / "build" / "install.log").read_text(encoding="utf-8")
    assert not (machine.checkout / ".venv" / "stamp").exists()


def test_an_environment_is_made_once(machine: Machine) -> None:
    """The second command installs nothing, until the project file changes; arguments are passed on."""
    installs = machine.checkout / "installs"
    machine.put(machine.checkout / "pip", f'case "$*" in *"pip install"*) echo once >>{installs} ;; esac')
    machine.put(machine.checkout / "hisparse", 'echo "hisparse $*"')
    environment = machine.checkout / ".venv" / "bin"
    copy = f"mkdir -p {environment}; {shutil.which('cp')} {machine.checkout}/pip {environment}/python"
    machine.put_python(venv=f"{copy}; {shutil.which('cp')} {machine.checkout}/hisparse {environment}/hisparse; exit 0")

    assert machine.run("demo", "--json").stdout == "hisparse demo --json\n"
    assert machine.run("demo", "--json").stdout == "hisparse demo --json\n"
    assert installs.read_text(encoding="utf-8") == "once\n"

    with (machine.checkout / "pyproject.toml").open("a", encoding="utf-8") as project:
        project.write("# changed\n")
    machine.run("demo")
    assert installs.read_text(encoding="utf-8") == "once\nonce\n"


def test_the_whole_suite_prepares_prometheus_first(machine: Machine) -> None:
    """Running all tests fetches Prometheus before; a failure is told and stops nothing; a selection fetches nothing."""
    calls = machine.checkout / "calls"
    python = (
        f'echo "$*" >>{calls}; case "$*" in *get_prometheus*) echo "no apt" >&2; exit 1 ;; "-m pytest"*) exit 7 ;; esac'
    )
    machine.put(machine.checkout / "python", python)
    environment = machine.checkout / ".venv" / "bin"
    copy = f"mkdir -p {environment}; {shutil.which('cp')} {machine.checkout}/python {environment}/python"
    machine.put_python(venv=f"{copy}; exit 0")

    done = machine.run("test")
    assert done.returncode == 7
    assert "no apt" in done.stderr
    assert "without Prometheus its tests will fail" in done.stderr
    asked = [line for line in calls.read_text(encoding="utf-8").splitlines() if line.startswith(("tools", "-m pytest"))]
    assert asked == ["tools/get_prometheus.py", "-m pytest -n auto --dist worksteal"]

    assert machine.run("test", "-k", "residency").returncode == 7
    assert calls.read_text(encoding="utf-8").count("get_prometheus") == 1
