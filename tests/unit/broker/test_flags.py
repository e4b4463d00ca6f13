"""Command lines and config files, as the real daemons read them."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nsqflow.broker.flags import FlagError, Flags, nsqd_flags, nsqlookupd_flags
from nsqflow.broker.options import DaemonOptions, LookupdOptions, NsqdOptions
from nsqflow.errors import ConfigError
from tests.fixtures.servers import PATIENCE, find_server

# Of the real nsqd and nsqlookupd, where the one in their repository is not only comments.
NSQD_CONFIG = """
log_level = "warn"
id = 5
tcp_address = "0.0.0.0:4150"
nsqlookupd_tcp_addresses = ["127.0.0.1:4160", "127.0.0.1:4260"]
auth_http_addresses = "127.0.0.1:1,127.0.0.1:2"
http_client_connect_timeout = "2s"
data_path = ""
mem_queue_size = 100
msg_timeout = "1m30s"
max_msg_timeout = 5000
max_rdy_count = "7"
tls_required = false
tls_min_version = ""
deflate = true
snappy = false
"""
IDLE_CONFIG = """
max_bytes_per_file = 104857600
sync_every = 2500
sync_timeout = "2s"
statsd_prefix = "nsq.%s"
statsd_interval = "60s"
statsd_mem_stats = true
e2e_processing_latency_percentiles = [1.0, 0.99, 0.95]
e2e_processing_latency_window_time = "10m"
"""


def read_nsqd(*arguments: str) -> tuple[NsqdOptions, list[str]]:
    flags = nsqd_flags()
    return flags.options(flags.read(arguments))


def usage_of(text: str) -> dict[str, str]:
    """The flags that a usage text names, and the kind of value of each."""
    return dict(re.findall(r"^  -(\S+)(?: (\w+))?$", text, re.MULTILINE))


@pytest.mark.parametrize("flags", [nsqd_flags(), nsqlookupd_flags()], ids=lambda f: f.program)
def test_every_flag_of_the_real_daemon_is_known_and_of_the_same_kind(flags: Flags[Any]) -> None:
    command = [str(find_server(flags.program)), "-help"]
    text = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stderr
    real, ours = usage_of(text), usage_of(flags.usage())
    assert "tcp-address" in real
    unlike = {name: (kind, ours.get(name)) for name, kind in real.items() if ours.get(name) != kind}
    # Those that have no effect take any value; one of a few words is not just any text.
    assert {name for name, kinds in unlike.items() if kinds[1] != "value"} == set()
    assert set(ours) - set(real) <= {"help", "max-memory"}


@pytest.mark.parametrize(
    ("arguments", "msg_timeout"),
    [
        ([], 60.0),
        (["-msg-timeout=5s"], 5.0),
        (["--msg-timeout=5s"], 5.0),
        (["-msg-timeout", "5s"], 5.0),
        (["--msg-timeout", "5s", "--"], 5.0),
        (["-msg-timeout=1s", "-msg-timeout=5s"], 5.0),
        (["-msg-timeout=1m30s"], 90.0),
        (["-msg-timeout=250ms"], 0.25),
        (["-msg-timeout=1.5h"], 5400.0),
        (["-msg-timeout=.5s"], 0.5),
        (["-msg-timeout=+1.s"], 1.0),
        (["-msg-timeout=2us"], 2e-6),
        (["-msg-timeout=2µs"], 2e-6),
        (["-msg-timeout=7ns"], 7e-9),
    ],
)
def test_a_value_stands_behind_an_equals_sign_or_in_the_next_word(
    arguments: list[str], msg_timeout: float
) -> None:
    assert read_nsqd(*arguments)[0].msg_timeout == pytest.approx(msg_timeout)


@pytest.mark.parametrize(
    ("argument", "snappy"),
    [("-snappy", True), ("-snappy=false", False), ("-snappy=F", False), ("--snappy=1", True)],
)
def test_a_switch_needs_no_value_and_takes_none_from_the_next_word(
    argument: str, snappy: bool
) -> None:
    options, _ = read_nsqd(argument, "-max-rdy-count=3")
    assert (options.snappy, options.max_rdy_count) == (snappy, 3)


@pytest.mark.parametrize(
    ("argument", "required"),
    [
        ("-tls-required", "true"),
        ("-tls-required=1", "true"),
        ("-tls-required=false", ""),
        ("-tls-required=TCP-https", "tcp-https"),
    ],
)
def test_tls_can_be_required_in_three_ways(argument: str, required: str) -> None:
    assert read_nsqd("-tls-cert=c", "-tls-key=k", argument)[0].tls_required == required


def test_a_list_grows_with_each_flag() -> None:
    options, _ = read_nsqd("-lookupd-tcp-address=a:1", "--lookupd-tcp-address", "b:2")
    assert options.lookupd_tcp_address == ("a:1", "b:2")


def test_numbers_may_have_the_prefixes_of_go() -> None:
    options, _ = read_nsqd("-mem-queue-size=0x10", "-max-rdy-count=1_000")
    assert (options.mem_queue_size, options.max_rdy_count) == (16, 1000)


@pytest.mark.parametrize("arguments", [[], ["-data-path="]])
def test_without_a_data_path_messages_are_kept_in_memory(arguments: list[str]) -> None:
    assert read_nsqd(*arguments)[0].data_path is None


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("-msg-timeot=5s", "unknown flag -msg-timeot (did you mean -msg-timeout?)"),
        ("--qqqqq", "unknown flag --qqqqq; -help lists all"),
        ("---snappy", "unknown flag ---snappy"),
        ("-=5", "unknown flag -; -help"),
        ("stray", "'stray' is not a flag"),
        ("-", "'-' is not a flag"),
        ("", "'' is not a flag"),
        ("-msg-timeout", "-msg-timeout without its value"),
        ("-msg-timeout=5", "-msg-timeout '5'; allowed is a number with a unit"),
        ("-msg-timeout=", "-msg-timeout ''; allowed is a number with a unit"),
        ("-msg-timeout=5s5", "-msg-timeout '5s5'"),
        ("-msg-timeout=.s", "-msg-timeout '.s'"),
        ("-max-rdy-count=many", "-max-rdy-count 'many'; allowed is a whole number of 1 or more"),
        ("-max-deflate-level=x", "-max-deflate-level 'x'; allowed is a whole number of 1 to 9"),
        ("-snappy=yes", "-snappy 'yes'; allowed is true or false"),
        ("-tls-required=maybe", "-tls-required 'maybe'; allowed is true, false or tcp-https"),
        ("-tls-min-version=ssl3.0", "allowed is 'tls1.0', 'tls1.1', 'tls1.2' or 'tls1.3'"),
        ("-log-level=warning", "allowed is 'debug', 'info', 'warn', 'error' or 'fatal'"),
    ],
)
def test_a_flag_that_can_not_be_read_is_named_in_one_line(argument: str, words: str) -> None:
    with pytest.raises(FlagError) as caught:
        nsqd_flags().read([argument])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_follows_two_dashes_is_not_a_flag() -> None:
    with pytest.raises(FlagError, match="'-snappy' is not a flag"):
        nsqd_flags().read(["--", "-snappy"])


@pytest.mark.parametrize("arguments", [["-help"], ["--h", "-nope"], ["-snappy", "--help=0", "x"]])
def test_nothing_is_read_beyond_a_call_for_help(arguments: list[str]) -> None:
    assert "help" in nsqd_flags().read(arguments)


def test_a_value_out_of_its_range_is_named_as_an_option() -> None:
    with pytest.raises(ConfigError, match=r"max_deflate_level 10; allowed is .* of 1 to 9"):
        read_nsqd("-max-deflate-level=10")
    with pytest.raises(ConfigError, match=r"msg_timeout -5\.0; allowed are seconds, above 0"):
        read_nsqd("-msg-timeout=-5s")


def test_a_flag_without_effect_is_taken_and_told() -> None:
    options, warnings = read_nsqd("-statsd-address=127.0.0.1:1", "-verbose", "-sync-every=5")
    assert options == read_nsqd()[0]
    assert warnings == [
        "-statsd-address has no effect in nsqflow",
        "-verbose has no effect in nsqflow",
        "-sync-every has no effect in nsqflow",
    ]


def test_a_config_file_has_the_names_of_the_real_nsqd(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_text(NSQD_CONFIG)
    options, warnings = read_nsqd(f"-config={path}")
    assert warnings == []
    assert options == NsqdOptions(
        log_level="warn",
        node_id=5,
        tcp_address="0.0.0.0:4150",
        lookupd_tcp_address=("127.0.0.1:4160", "127.0.0.1:4260"),
        auth_http_address=("127.0.0.1:1", "127.0.0.1:2"),
        mem_queue_size=100,
        msg_timeout=90.0,
        max_msg_timeout=5.0,  # a bare number is milliseconds
        max_rdy_count=7,
        snappy=False,
    )


def test_a_flag_wins_over_the_config_file_wherever_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_text(NSQD_CONFIG)
    options, _ = read_nsqd("-msg-timeout=1s", f"-config={path}", "-lookupd-tcp-address=a:1")
    assert options.msg_timeout == 1.0
    assert options.lookupd_tcp_address == ("a:1",)
    assert options.mem_queue_size == 100


def test_what_a_config_file_says_in_vain_is_told(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_text(IDLE_CONFIG + "msg_timeot = '5s'\n")
    options, warnings = read_nsqd(f"-config={path}")
    assert options == read_nsqd()[0]
    assert f"{path}: sync_every has no effect in nsqflow" in warnings
    assert warnings[-1] == f"{path}: no option 'msg_timeot' (did you mean msg_timeout?)"
    assert len(warnings) == len(IDLE_CONFIG.split("\n")) - 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("msg_timeout = 'soon'", "msg_timeout 'soon'; allowed is a number with a unit"),
        ("msg_timeout = [1]", "msg_timeout [1]; allowed is a number with a unit"),
        ("max_rdy_count = 1.5", "max_rdy_count 1.5; allowed is a whole number"),
        ("max_rdy_count = true", "max_rdy_count True; allowed is a whole number"),
        ("snappy = 'yes'", "snappy 'yes'; allowed is true or false"),
        ("tcp_address = 4150", "tcp_address 4150; allowed is a string"),
        ("tls_required = 'maybe'", "tls_required 'maybe'; allowed is true, false or tcp-https"),
        ("log_level = 'loud'", "log_level 'loud'; allowed is 'debug', 'info'"),
        ("nsqlookupd_tcp_addresses = 1", "nsqlookupd_tcp_addresses 1; allowed is an array"),
        ("nsqlookupd_tcp_addresses = [1]", "lookupd_tcp_address 1; allowed are host:port"),
        ("x = [", "is not TOML"),
        ("x = '\udcff'", "is not TOML"),
    ],
)
def test_a_config_file_that_can_not_be_read_is_named_with_its_fault(
    line: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_text(line, errors="surrogateescape")
    with pytest.raises(ConfigError) as caught:
        read_nsqd(f"-config={path}")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_config_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config file '.*/none': No such file or directory"):
        read_nsqd(f"-config={tmp_path / 'none'}")


def test_nsqlookupd_has_its_own_flags() -> None:
    flags = nsqlookupd_flags()
    options: DaemonOptions
    options, _ = flags.options(flags.read(["-tombstone-lifetime=1s", "-tcp-address=:1"]))
    assert options == LookupdOptions(tombstone_lifetime=1.0, tcp_address=":1")
    with pytest.raises(FlagError, match="unknown flag -mem-queue-size"):
        flags.read(["-mem-queue-size=1"])


def test_help_tells_every_flag_its_kind_and_its_default() -> None:
    text = nsqd_flags().usage()
    assert text.startswith("Usage of nsqd:\n")
    assert "  -msg-timeout duration\n    \thow long" in text
    assert '(default "127.0.0.1:4150")\n' in text
    assert "(default 25ms)\n" in text
    assert "MISSING" not in text
