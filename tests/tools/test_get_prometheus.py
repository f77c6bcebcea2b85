"""The tool that finds or fetches Prometheus, on machines made of stand-ins for apt and dpkg."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "get_prometheus.py"
# Stands in for dpkg-deb: "unpacks" programs that answer --version.
UNPACK = """
mkdir -p "$3/usr/bin"
for name in prometheus promtool; do
    printf '#!/bin/sh\\necho "%s, version 2.42.0"\\n' "$name" >"$3/usr/bin/$name"
    chmod +x "$3/usr/bin/$name"
done
"""


class Machine:
    """A PATH with stand-ins only, and a folder to unpack in."""

    def __init__(self, folder: Path) -> None:
        """Lay out both in `folder`."""
        self.path = folder / "bin"
        self.build = folder / "build"
        self.calls = folder / "calls"
        self.path.mkdir()
        for name in ("sh", "mkdir", "chmod", "touch", "sleep"):
            (self.path / name).symlink_to(str(shutil.which(name)))

    def put(self, name: str, script: str) -> None:
        """Put a program on the PATH."""
        (self.path / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (self.path / name).chmod(0o755)

    def put_apt(self, download: str = "touch prometheus_1_amd64.deb") -> None:
        """Put an apt-get that notes its calls and downloads by `download`, and a dpkg-deb that unpacks."""
        self.put("apt-get", f'echo "$*" >>{self.calls}\ncase "$*" in *download*) {download} ;; esac')
        self.put("dpkg-deb", UNPACK)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the tool."""
        command: list[str | Path] = [sys.executable, TOOL, "--build", self.build, *arguments]
        environment = {"PATH": str(self.path)}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run the tool; return its exit status, output and errors."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def downloads(self) -> int:
        """Count how often a download was asked for."""
        return self.calls.read_text(encoding="utf-8").count(" download ") if self.calls.exists() else 0

    @property
    def unpacked(self) -> list[str]:
        """What the tool prints when it has unpacked."""
        return [str(self.build / "prometheus" / "usr" / "bin" / name) for name in ("prometheus", "promtool")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine without apt."""
    return Machine(tmp_path)


def test_programs_on_path_are_taken(machine: Machine) -> None:
    """Nothing is fetched where both programs are on PATH."""
    machine.put_apt()
    for name in ("prometheus", "promtool"):
        machine.put(name, f'echo "{name}, version 3.0.0"')
    status, out, _ = machine.run()
    assert (status, out.split()) == (0, [str(machine.path / name) for name in ("prometheus", "promtool")])
    assert machine.downloads() == 0


def test_a_namesake_on_path_is_passed_over(machine: Machine) -> None:
    """A program that is called prometheus and is another one is not taken."""
    machine.put_apt()
    for name in ("prometheus", "promtool"):
        machine.put(name, 'echo "a game"')
    assert machine.run()[1].split() == machine.unpacked


def test_the_package_is_fetched_once(machine: Machine) -> None:
    """What was unpacked serves the next call, which fetches nothing, and leaves no other file."""
    machine.put_apt()
    assert machine.run()[1].split() == machine.unpacked
    assert machine.run()[1].split() == machine.unpacked
    assert machine.run("--find")[1].split() == machine.unpacked
    assert machine.downloads() == 1
    assert sorted(path.name for path in machine.build.iterdir()) == ["prometheus", "prometheus.lock"]


def test_calls_at_once_fetch_once(machine: Machine) -> None:
    """Of several calls at the same time one fetches and the others wait for it."""
    machine.put_apt("sleep 0.3; touch prometheus_1_amd64.deb")
    processes = [machine.start() for _ in range(4)]
    assert [process.communicate(timeout=60)[0].split() for process in processes] == [machine.unpacked] * 4
    assert machine.downloads() == 1


@pytest.mark.parametrize("damage", ["removed", "emptied", "foreign"])
def test_a_broken_copy_repairs_itself(machine: Machine, damage: str) -> None:
    """A program that is gone, cut short or not for this machine is fetched again."""
    machine.put_apt()
    machine.run()
    promtool = Path(machine.unpacked[1])
    promtool.unlink()
    if damage != "removed":
        promtool.write_bytes(b"" if damage == "emptied" else b"\x7fELF of another machine")
        promtool.chmod(0o755)
    assert machine.run("--find")[0] == 1
    assert machine.run()[1].split() == machine.unpacked
    assert machine.downloads() == 2


def test_what_a_killed_call_left_is_removed(machine: Machine) -> None:
    """A half-made folder of an earlier call does not stay."""
    machine.put_apt()
    (machine.build / "prometheus-half").mkdir(parents=True)
    assert machine.run()[0] == 0
    assert not (machine.build / "prometheus-half").exists()


def test_empty_lists_are_made_up_for_in_private(machine: Machine) -> None:
    """Where the machine's lists lack the package, lists of the call's own are fetched, and nothing of the machine's."""
    machine.put_apt('case "$*" in *Dir::State::Lists=*) touch prometheus_1_amd64.deb ;; *) exit 100 ;; esac')
    assert machine.run()[1].split() == machine.unpacked
    updates = [line for line in machine.calls.read_text(encoding="utf-8").splitlines() if line.endswith(" update")]
    assert len(updates) == 1
    assert f"Dir::State::Lists={machine.build}" in updates[0]


def test_a_machine_without_apt_is_told_what_to_install(machine: Machine) -> None:
    """Without programs and apt the tool says which programs are needed and how to get them."""
    status, out, err = machine.run()
    assert (status, out) == (1, "")
    assert err.startswith("this machine has neither Prometheus nor apt: install Prometheus so that")


def test_a_failed_download_is_explained(machine: Machine) -> None:
    """When apt fails, its own first error is in the sentence, and nothing half-made stays."""
    machine.put_apt("echo 'E: Unable to locate package prometheus' >&2; exit 100")
    status, _, err = machine.run()
    assert status == 1
    assert "apt could not fetch the package prometheus (Unable to locate package prometheus): install" in err
    assert [path.name for path in machine.build.iterdir()] == ["prometheus.lock"]


def test_a_package_that_does_not_start_is_explained(machine: Machine) -> None:
    """Programs that do not start on this machine are named as such."""
    machine.put_apt()
    machine.put("dpkg-deb", UNPACK.replace("2.42.0", '"; exit 1; echo "'))
    status, _, err = machine.run()
    assert status == 1
    assert "its programs do not start here" in err


def test_find_fetches_nothing(machine: Machine) -> None:
    """Only looking leaves the machine as it is and names the command that fetches."""
    machine.put_apt()
    status, _, err = machine.run("--find")
    assert status == 1
    assert "run python tools/get_prometheus.py" in err
    assert machine.downloads() == 0
