"""The command ``nsqflow``: its verbs, and what it loads to answer."""

import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import nsqflow
from nsqflow.broker import BackgroundBroker
from nsqflow.cli import DAEMONS, VERBS, main
from nsqflow.cli.app import load
from tests.cli.commands import COMMAND
from tests.fixtures.servers import PATIENCE

ROOT = Path(__file__).resolve().parents[2]

# What takes longer to load than the everyday verbs take altogether.
HEAVY = ["fsspec", "numpy", "pandas", "pyarrow", "pydantic", "pyspark", "rich"]


def test_the_command_is_the_one_that_is_installed() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["nsqflow"].partition(":")
    assert getattr(import_module(module), name) is main


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_the_verbs(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert [verb for verb in VERBS if f"\n  {verb} " not in out] == []
    assert "--install-completion" in out
    assert err == ""


@pytest.mark.parametrize("verb", ["pub", "nsqd"])
def test_help_of_a_verb_can_be_asked_for_by_its_name(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert main(["help", verb]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in DAEMONS])
def test_a_verb_of_the_help_is_there(verb: str) -> None:
    assert load(verb).__name__ == verb.replace("-", "_")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"nsqflow {nsqflow.__version__}\n"


@pytest.mark.parametrize(
    ("verb", "hint"),
    [
        ("nsq", "did you mean 'nsqd'?"),
        ("nsqlookup", "did you mean 'nsqlookupd'?"),
        ("topic", "did you mean 'topics'?"),
        ("publish-all", "nsqflow --help lists all"),
    ],
)
def test_a_verb_that_is_not_known_is_named_with_a_hint(
    verb: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb]) == 2
    assert capsys.readouterr() == ("", f"nsqflow: unknown verb {verb!r}; {hint}\n")


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--versoin", "did you mean '--version'?"),
        ("--install-completions", "did you mean '--install-completion'?"),
        ("-x", "nsqflow --help lists all"),
    ],
)
def test_an_option_that_is_not_known_is_named_with_a_hint(
    option: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([option]) == 2
    assert capsys.readouterr() == ("", f"nsqflow: unknown option {option!r}; {hint}\n")


def test_an_option_before_the_verb_is_named_with_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--nsqd", "127.0.0.1:4150", "pub", "orders", "x"]) == 2
    hint = "options follow the verb: nsqflow pub ... --nsqd ..."
    assert capsys.readouterr() == ("", f"nsqflow: unknown option '--nsqd'; {hint}\n")


@pytest.mark.parametrize("verb", ["nsqd", "nsqlookupd"])
def test_each_daemon_prints_its_flags_and_its_version(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "-help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage of {verb}:\n")
    assert main([verb, "--version"]) == 0
    assert capsys.readouterr().out.startswith(f"{verb} v1.3.0-nsqflow (built w/python3.")


@pytest.mark.parametrize("verb", ["nsqd", "nsqlookupd"])
def test_a_flag_that_is_not_known_is_one_line_and_a_misuse(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "-tcp-adress=:1"]) == 2
    hint = "did you mean '-tcp-address'?"
    expected = f"{verb}: unknown flag -tcp-adress ({hint}); -help lists all\n"
    assert capsys.readouterr() == ("", expected)


@pytest.mark.parametrize(
    ("redirection", "words", "code"),
    [
        ("<&-", "pub orders", 0),
        (">&-", "topics", 0),
        ("2>&-", "topics", 0),
        (">&- 2>&-", "nodes", 0),
        ("<&- >&- 2>&-", "stat --once", 0),
        ("<&-", "delete orders", 2),
        ("2>&-", "channels nothing", 1),
    ],
)
def test_a_closed_stream_is_not_an_error(redirection: str, words: str, code: int) -> None:
    with BackgroundBroker() as broker:
        broker.create_topic("orders")
        servers = f"--lookupd {broker.lookupd_addresses[0]}"
        done = subprocess.run(
            ["sh", "-c", f"{shlex.join(COMMAND)} {words} {servers} {redirection}"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == code
    assert "mistake" not in done.stdout + done.stderr
    assert done.stderr == "" or "2>&-" not in redirection
    assert done.stdout == "" or redirection in ("<&-", "2>&-")


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (["--version"], ["asyncio", "dataclasses", "nsqflow.broker", "typer"]),
        (["--help"], ["asyncio", "dataclasses", "nsqflow.broker", "typer"]),
        (["topics", "--help"], ["nsqflow.broker", *HEAVY]),
        (["topics", "--nsqd=127.0.0.1:9"], ["nsqflow.broker", *HEAVY]),
        (["tail", "orders", "--nsqd=127.0.0.1:9"], ["nsqflow.broker", *HEAVY]),
        (["pub", "orders", "x", "--nsqd=127.0.0.1:9"], ["nsqflow.broker", *HEAVY]),
        (["stat", "--once", "--nsqd=127.0.0.1:9"], ["nsqflow.broker", *HEAVY]),
        (["nsqd", "-version"], ["asyncio", "nsqflow.protocol", "nsqflow.broker.nsqd"]),
        (["nsqd", "-nope"], ["asyncio", "nsqflow.protocol", "nsqflow.broker.nsqd"]),
    ],
)
def test_a_quick_answer_loads_little(arguments: list[str], unneeded: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "nsqflow", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "nsqflow.cli" in loaded
    assert loaded.isdisjoint(unneeded)
