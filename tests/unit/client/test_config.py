"""Options: what is refused, in which words, before anything is connected."""

from __future__ import annotations

import ssl
from dataclasses import fields
from math import inf, nan
from pathlib import Path
from typing import Any, cast

import pytest

from nsqflow import ClientEvent, Consumer, Producer
from nsqflow.client import events, options
from nsqflow.client.config import ClientConfig
from nsqflow.client.consumer.config import ConsumerConfig
from nsqflow.client.producer.config import ProducerConfig
from nsqflow.config.numbers import Integer, Number
from nsqflow.errors import ConfigError


def consumer(**given: Any) -> ConsumerConfig:
    return ConsumerConfig.of("Consumer", given.pop("nsqd", "nsqd:4150"), (), given)


def producer(**given: Any) -> ProducerConfig:
    return ProducerConfig.of("Producer", given.pop("nsqd", "nsqd:4150"), (), given)


NUMBERS: dict[str, Number] = {
    f.name: kind
    for c in (ConsumerConfig, ProducerConfig)
    for f in fields(c)
    if isinstance(kind := f.metadata["option"].kind, Number)
}


def make(name: str, value: object) -> ClientConfig:
    """The configuration that has the option, with this value."""
    known = {f.name for f in fields(ConsumerConfig)}
    return consumer(**{name: value}) if name in known else producer(**{name: value})


def outside(check: Number) -> list[object]:
    """Values just out of the range, and some that are no numbers at all."""
    whole = isinstance(check, Integer)
    below = check.low if check.above else check.low - (1 if whole else 0.0001)
    values: list[object] = [int(below) if whole else below, -2, inf, -inf, nan, "5", True]
    if not check.disabled:
        values.append(-1)
    if check.high is not None:
        values.append(check.high + 1)
    if whole:
        values.append(check.low + 0.5)
    if not check.optional:
        values.append(None)
    return values


# Numbers.


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_a_number_out_of_its_range_is_refused_with_name_value_and_range(name: str) -> None:
    check = NUMBERS[name]
    for value in outside(check):
        with pytest.raises(ConfigError) as caught:
            make(name, value)
        assert str(caught.value) == f"{name}={value!r} is invalid: must be {check}"


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_the_ends_of_a_range_are_in_it(name: str) -> None:
    check = NUMBERS[name]
    inside: list[Any] = [check.low + (0.001 if check.above else 0), check.high]
    inside += [-1] if check.disabled else []
    for value in inside:
        check.check(name, value if value is not None else 10**400)


# Options that go together.


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"reconnect_delay": 9, "max_reconnect_delay": 8},
            "max_reconnect_delay=8 is invalid",
        ),
        ({"snappy": True, "deflate": True}, "snappy and deflate"),
        ({"dialect": "modern"}, "dialect='modern' is invalid: must be classic, redesigned or None"),
        ({"heartbeat_interval": -1}, "heartbeat_interval=-1 is invalid for a Consumer"),
    ],
)
def test_options_that_cannot_go_together_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        consumer(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"max_body_size": 1000, "max_msg_size": 993},
            "max_body_size=1000 is invalid",
        ),
        ({"max_pending": 5 * 1024 * 1024 - 1}, r"max_pending=5242879 is invalid: .*5242880"),
    ],
)
def test_sizes_that_do_not_fit_into_each_other_are_refused(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        producer(**given)


def test_a_producer_may_do_without_heartbeats() -> None:
    assert producer(heartbeat_interval=-1).identify().heartbeat_interval == -1


@pytest.mark.parametrize(
    ("nsqd", "lookupd", "words"),
    [
        ((), (), "neither nsqd nor lookupd"),
        ("a:1", "b:2", "both nsqd and lookupd"),
        (["a:1", "nonsense"], (), "nsqd address 'nonsense'"),
        (None, (), "nsqd=None"),
        ([b"a:1"], (), "nsqd=b'a:1'"),
        ((), 4161, "lookupd=4161"),
        ((), ["b:2", "b"], "HTTP address 'b'"),
    ],
)
def test_servers_that_cannot_be_are_refused(nsqd: Any, lookupd: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Producer(nsqd, lookupd=lookupd)
    with pytest.raises(ConfigError, match=words):
        Consumer("topic", "channel", nsqd=nsqd, lookupd=lookupd)


# Options of other kinds.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("snappy", "no"), ("deflate", 1), ("tls", "yes"), ("tls", 2)),
        *(("client_id", b"me"), ("hostname", 5), ("user_agent", ["x"])),
        *(("on_event", "print"), ("on_giving_up", 5), ("address_map", ["a", "b"])),
        *(("dead_letter", 5), ("dead_letter", "no topic"), ("dead_letter", "")),
    ],
)
def test_what_is_of_the_wrong_kind_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        consumer(**{name: value})
    assert str(caught.value).startswith(f"{name}={value!r} is invalid: must be ")


def test_a_secret_of_the_wrong_kind_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError, match="auth_secret is invalid: must be str or bytes"):
        consumer(auth_secret=["hunter2"])


@pytest.mark.parametrize("dead_letter", [None, "topic", "a/b.jsonl", Path("x"), lambda m, e: None])
def test_dead_letters_may_go_to_a_topic_a_file_or_a_function(dead_letter: Any) -> None:
    assert consumer(dead_letter=dead_letter).dead_letter is dead_letter


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_inflight", "; did you mean 'max_in_flight'?"),
        ("nsqd_tcp_addresses", "; did you mean 'nsqd'?"),
        ("lookupd_http_addresses", "; did you mean 'lookupd'?"),
        ("colour", ""),
    ],
)
def test_an_option_that_does_not_exist_is_a_type_error_with_a_hint(name: str, hint: str) -> None:
    wrong = cast(Any, {name: 5})
    with pytest.raises(TypeError) as caught:
        Consumer("t", "c", nsqd="a:1", **wrong)
    assert str(caught.value) == f"Consumer has no option {name!r}{hint}"


def test_an_option_of_the_consumer_is_none_of_the_producer() -> None:
    wrong = cast(Any, {"max_in_flight": 5})
    with pytest.raises(TypeError, match="Producer has no option 'max_in_flight'"):
        Producer("a:1", **wrong)


# What others read of it.


@pytest.mark.parametrize(
    ("config", "typed"),
    [(ConsumerConfig, options.ConsumerOptions), (ProducerConfig, options.ProducerOptions)],
)
def test_what_type_checkers_know_is_what_there_is(
    config: type[ClientConfig], typed: type[Any]
) -> None:
    there = {f.name: f.type for f in fields(config)}
    del there["nsqd"], there["lookupd"]  # arguments of their own
    assert {n: hint.__forward_arg__ for n, hint in typed.__annotations__.items()} == there


def test_no_secret_is_in_what_is_printed() -> None:
    config = ConsumerConfig.of(
        "Consumer",
        (),
        "http://user:hunter2@lookupd:4161",
        {"auth_secret": "hunter2", "lookupd_headers": {"X-Key": "hunter2"}},
    )
    assert "hunter2" not in repr(config)
    assert (config.secret, config.lookupd_headers["X-Key"]) == (b"hunter2", "hunter2")


def test_a_secret_may_be_bytes() -> None:
    assert consumer(auth_secret=b"\xff").secret == b"\xff"
    assert consumer().secret is None


def test_what_was_not_chosen_is_left_to_the_server() -> None:
    request = consumer().identify()
    chosen = {f.name for f in fields(request) if getattr(request, f.name)}
    assert chosen == {"client_id", "hostname", "user_agent", "feature_negotiation"}


def test_seconds_become_milliseconds_on_the_wire() -> None:
    request = consumer(
        heartbeat_interval=1.5, msg_timeout=2, output_buffer_timeout=0.025
    ).identify()
    assert (request.heartbeat_interval, request.msg_timeout) == (1500, 2000)
    assert request.output_buffer_timeout == 25
    assert consumer(output_buffer_timeout=-1).identify().output_buffer_timeout == -1


def test_a_client_is_known_by_the_short_name_of_its_host() -> None:
    assert consumer(hostname="a.b.c").identify().client_id == "a"
    assert consumer(hostname="a.b.c", client_id="me").identify().client_id == "me"


def test_tls_is_verified_unless_the_users_own_context_says_otherwise() -> None:
    assert consumer().ssl_context() is None
    default = consumer(tls=True).ssl_context()
    assert default is not None
    assert (default.verify_mode, default.check_hostname) == (ssl.CERT_REQUIRED, True)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    assert consumer(tls=own).ssl_context() is own


def test_the_level_of_deflate_is_sent_only_with_deflate() -> None:
    assert consumer(deflate_level=3).identify().deflate_level is None
    assert consumer(deflate_level=3, deflate=True).identify().deflate_level == 3


# Events


def test_a_callback_that_raises_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[ClientEvent] = []

    def callback(event: ClientEvent) -> None:
        heard.append(event)
        raise RuntimeError("no")

    event_emitter = events.EventEmitter(callback)
    event_emitter.emit("connected", "a:1")
    event_emitter.emit("disconnected", "a:1", "text", ConfigError("why"))
    assert [item.kind for item in heard] == ["connected", "disconnected"]
    assert str(heard[1].error) == "why"
    assert [record.getMessage() for record in caplog.records] == [
        "on_event raised on connected",
        "on_event raised on disconnected",
    ]


def test_without_a_callback_events_are_dropped() -> None:
    events.EventEmitter(None).emit("connected")


@pytest.mark.parametrize("headers", ["X-Key: 1", None, [("X-Key", "1")], 5])
def test_headers_that_are_no_mapping_are_refused_and_not_shown(headers: Any) -> None:
    with pytest.raises(ConfigError, match="lookupd_headers is invalid") as caught:
        ConsumerConfig(lookupd=("127.0.0.1:4161",), lookupd_headers=headers)
    assert "X-Key" not in str(caught.value)
