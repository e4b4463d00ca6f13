"""Command lines and config files, as the real daemons read them."""

from pathlib import Path

import pytest

from nsqflow.broker.flags import FlagError, nsqd_flags, nsqlookupd_flags
from nsqflow.broker.options import DaemonOptions, LookupdOptions, NsqdOptions
from nsqflow.errors import ConfigError

# Options as in the config files of the real daemons.
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
def test_a_value_follows_an_equals_sign_or_is_the_next_argument(
    arguments: list[str], msg_timeout: float
) -> None:
    assert read_nsqd(*arguments)[0].msg_timeout == pytest.approx(msg_timeout)


@pytest.mark.parametrize(
    ("argument", "snappy"),
    [("-snappy", True), ("-snappy=false", False), ("-snappy=F", False), ("--snappy=1", True)],
)
def test_a_boolean_flag_does_not_use_the_next_argument(argument: str, snappy: bool) -> None:
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
        ("-msg-timeot=5s", "unknown flag -msg-timeot (did you mean '-msg-timeout'?)"),
        ("--qqqqq", "unknown flag --qqqqq; -help lists all"),
        ("---snappy", "unknown flag ---snappy"),
        ("-=5", "unknown flag -; -help"),
        ("stray", "'stray' is not a flag"),
        ("-", "'-' is not a flag"),
        ("", "'' is not a flag"),
        ("-msg-timeout", "-msg-timeout has no value"),
        ("-msg-timeout=5", "-msg-timeout='5' is invalid: must be a number with a unit"),
        ("-msg-timeout=", "-msg-timeout='' is invalid: must be a number with a unit"),
        ("-msg-timeout=5s5", "-msg-timeout='5s5'"),
        ("-msg-timeout=.s", "-msg-timeout='.s'"),
        ("-max-rdy-count=many", "-max-rdy-count='many' is invalid: must be an integer >= 1"),
        ("-max-deflate-level=x", "-max-deflate-level='x' is invalid: must be an integer"),
        ("-snappy=yes", "-snappy='yes' is invalid: must be true or false"),
        ("-tls-required=maybe", "-tls-required='maybe' is invalid: must be true, false or"),
        ("-tls-min-version=ssl3.0", "must be tls1.0, tls1.1, tls1.2 or tls1.3"),
        ("-log-level=warning", "must be debug, info, warn, error or fatal"),
    ],
)
def test_an_invalid_flag_is_named_in_one_line(argument: str, words: str) -> None:
    with pytest.raises(FlagError) as caught:
        nsqd_flags().read([argument])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_follows_two_dashes_is_not_a_flag() -> None:
    with pytest.raises(FlagError, match="'-snappy' is not a flag"):
        nsqd_flags().read(["--", "-snappy"])


@pytest.mark.parametrize("arguments", [["-help"], ["--h", "-nope"], ["-snappy", "--help=0", "x"]])
def test_nothing_is_read_after_help(arguments: list[str]) -> None:
    assert "help" in nsqd_flags().read(arguments)


def test_a_value_out_of_range_is_named_as_an_option() -> None:
    with pytest.raises(ConfigError, match=r"max_deflate_level=10 is invalid"):
        read_nsqd("-max-deflate-level=10")
    with pytest.raises(ConfigError, match=r"msg_timeout=-5\.0 is invalid"):
        read_nsqd("-msg-timeout=-5s")


def test_a_flag_without_effect_is_accepted_with_a_warning() -> None:
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


def test_a_flag_overrides_the_config_file(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_text(NSQD_CONFIG)
    options, _ = read_nsqd("-msg-timeout=1s", f"-config={path}", "-lookupd-tcp-address=a:1")
    assert options.msg_timeout == 1.0
    assert options.lookupd_tcp_address == ("a:1",)
    assert options.mem_queue_size == 100


def test_keys_without_effect_in_a_config_file_give_warnings(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_text(IDLE_CONFIG + "msg_timeot = '5s'\n")
    options, warnings = read_nsqd(f"-config={path}")
    assert options == read_nsqd()[0]
    assert f"{path}: sync_every has no effect in nsqflow" in warnings
    hint = "did you mean 'msg_timeout'?"
    assert warnings[-1] == f"{path}: unknown option 'msg_timeot' ({hint})"
    assert len(warnings) == len(IDLE_CONFIG.split("\n")) - 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("msg_timeout = 'soon'", "msg_timeout='soon' is invalid: must be a number with a unit"),
        ("msg_timeout = [1]", "msg_timeout=[1] is invalid: must be a number with a unit"),
        ("max_rdy_count = 1.5", "max_rdy_count=1.5 is invalid: must be an integer"),
        ("max_rdy_count = true", "max_rdy_count=True is invalid: must be an integer"),
        ("snappy = 'yes'", "snappy='yes' is invalid: must be true or false"),
        ("tcp_address = 4150", "tcp_address=4150 is invalid: must be a string"),
        ("tls_required = 'maybe'", "tls_required='maybe' is invalid: must be true, false or"),
        ("log_level = 'loud'", "log_level='loud' is invalid: must be debug, info"),
        ("nsqlookupd_tcp_addresses = 1", "nsqlookupd_tcp_addresses=1 is invalid: must be an array"),
        ("nsqlookupd_tcp_addresses = [1]", "lookupd_tcp_address=1 is invalid: must be host:port"),
        ("x = [", "is not TOML"),
        ("x = '\udcff'", "is not TOML"),
    ],
)
def test_an_invalid_config_file_is_named_with_the_reason(
    line: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_text(line, errors="surrogateescape")
    with pytest.raises(ConfigError) as caught:
        read_nsqd(f"-config={path}")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_config_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config file '.*/none': No such file or directory"):
        read_nsqd(f"-config={tmp_path / 'none'}")


def test_nsqlookupd_has_its_own_flags() -> None:
    flags = nsqlookupd_flags()
    options: DaemonOptions
    options, _ = flags.options(flags.read(["-tombstone-lifetime=1s", "-tcp-address=:1"]))
    assert options == LookupdOptions(tombstone_lifetime=1.0, tcp_address=":1")
    with pytest.raises(FlagError, match="unknown flag -mem-queue-size"):
        flags.read(["-mem-queue-size=1"])


def test_help_lists_every_flag_with_kind_and_default() -> None:
    text = nsqd_flags().usage()
    assert text.startswith("Usage of nsqd:\n")
    assert "  -msg-timeout duration\n    \thow long" in text
    assert '(default "127.0.0.1:4150")\n' in text
    assert "(default 25ms)\n" in text
    assert "MISSING" not in text
