"""Options of the source and the sink: what is taken, and what is refused in which words."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from nsqflow.errors import ConfigError
from nsqflow.spark.options import (
    OPTIONS,
    SinkOptions,
    SourceOptions,
    parse_batch,
    parse_sink,
    parse_stream,
)
from nsqflow.spark.server_options import SCOPES, Access, ServerOptions

Parse = Callable[[dict[str, str]], SourceOptions | SinkOptions]

SECRET = "hunter2"

READ = {"topic": "orders", "channel": "spark", "nsqd": "a:4150", "spoolLocation": "/spool"}
WRITE = {"topic": "orders", "nsqd": "a:4150"}
PARSE: dict[str, tuple[Parse, dict[str, str]]] = {
    "stream": (parse_stream, READ),
    "batch": (parse_batch, READ),
    "sink": (parse_sink, WRITE),
}

# For each option a value other than its default, and what becomes of it. Some need another.
VALUES: dict[str, tuple[str, Any]] = {
    "topic": ("users", None),
    "topicPattern": ("a.+", "a.+"),
    "channel": ("other", "other"),
    "spoolLocation": ("s3a://bucket/spool", "s3://bucket/spool"),
    "spoolRetentionBatches": ("5", 5),
    "spoolPermissions": ("Group", "group"),
    "partitionsPerNsqd": ("4", 4),
    "maxMessagesPerPartition": ("1000", 1000),
    "maxMessagesPerTrigger": ("1000", 1000),
    "maxBytesPerTrigger": ("64m", 64 * 2**20),
    "minMessagesPerTrigger": ("10", 10),
    "maxTriggerDelay": ("5m", 300.0),
    "idleTimeout": ("50ms", 0.05),
    "msgTimeout": ("90", 90.0),
    "startingPosition": ("Latest", "latest"),
    "endingTimestamp": ("timestamp:1700000000", "timestamp:1700000000"),
    "ordered": ("true", True),
    "failOnDataLoss": ("False", False),
    "dedupe": ("always", "always"),
    "maxAttempts": ("3", 3),
    "deadLetterTopic": ("dead", "dead"),
    "includeMetadata": ("false", False),
    "mode": ("peek", "peek"),
    "leaseTimeout": ("5s", 5.0),
    "allowSharedChannel": ("TRUE", True),
    "readId": ("orders-1", "orders-1"),
    "maxMessages": ("20", 20),
    "maxBatchBytes": ("64k", 65536),
    "partitioner": ("Java", "java"),
    "lookupd": ("b:4161,https://c/x", ("b:4161", "https://c/x")),
    "nsqd": ("b:4150, c:4150", ("b:4150", "c:4150")),
    "nsqdHttp": ("b:80", ("b:80",)),
    "tls": ("true", True),
    "tlsCaFile": ("/ca.pem", "/ca.pem"),
    "tlsCertFile": ("/cert.pem", "/cert.pem"),
    "tlsKeyFile": ("/key.pem", "/key.pem"),
    "tlsVerify": ("false", False),
    "authSecret": (SECRET, SECRET),
    "authSecretFile": ("/secret", "/secret"),
    "authSecretEnv": ("SECRET", "SECRET"),
    "snappy": ("true", True),
    "deflate": ("true", True),
}
NEEDS = {
    "maxTriggerDelay": {"minMessagesPerTrigger": "1"},
    "maxAttempts": {"deadLetterTopic": "dead"},
    "deadLetterTopic": {"maxAttempts": "3"},
    "tlsCaFile": {"tls": "true"},
    "tlsCertFile": {"tls": "true"},
    "tlsKeyFile": {"tls": "true", "tlsCertFile": "/cert.pem"},
    "tlsVerify": {"tls": "true"},
}
RANGE = {"mode": "range", "lookupd": "b:4161"}  # what it takes to read a part of a topic
INSTEAD = {"topicPattern": "topic", "lookupd": "nsqd"}

PLACES = [(row.name, where) for row in OPTIONS for where in row.scopes or SCOPES]


def snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


def field_of(parsed: SourceOptions | SinkOptions, name: str) -> Any:
    """The value of an option, wherever it lies."""
    field = {"spoolLocation": "spool"}.get(name, snake(name))
    for part in (parsed, parsed.servers, parsed.access):
        if hasattr(part, field):
            return getattr(part, field)
    raise LookupError(name)


def source(**given: str) -> SourceOptions:
    return parse_stream(READ | given)


def refused(parse: Parse, given: dict[str, str]) -> str:
    """The error's words; they are one line."""
    with pytest.raises(ConfigError) as caught:
        parse(given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def without(given: dict[str, str], *names: str) -> dict[str, str]:
    return {name: text for name, text in given.items() if name not in names}


@pytest.mark.parametrize(("name", "where"), PLACES)
def test_an_option_is_taken_where_it_applies_in_any_spelling(name: str, where: str) -> None:
    parse, base = PARSE[where]
    text, value = VALUES[name]
    base = without(base, name, INSTEAD.get(name, "")) | NEEDS.get(name, {})
    if where == "batch" and name in ("startingPosition", "endingTimestamp"):
        base = without(base, "channel", "nsqd", "spoolLocation") | RANGE
    for spelling in (name, name.lower(), name.upper()):
        parsed = parse(base | {spelling: text})
        if name == "topic":
            assert text in (getattr(parsed, "topic", None), *getattr(parsed, "topics", ()))
        else:
            assert field_of(parsed, name) == value


@pytest.mark.parametrize(
    ("name", "where"),
    [
        (row.name, where)
        for row in OPTIONS
        for where in PARSE
        if row.name != "topic" and where not in (row.scopes or SCOPES)
    ],
)
def test_an_option_of_another_call_is_refused_with_that_call(name: str, where: str) -> None:
    parse, base = PARSE[where]
    words = refused(parse, base | {name.lower(): VALUES[name][0]})
    here = {"stream": "readStream", "batch": "read", "sink": "write and writeStream"}[where]
    assert words.startswith(f"{name} is an option of ")
    assert words.endswith(f", not of {here}")


@pytest.mark.parametrize(("name", "where"), PLACES)
def test_an_empty_value_is_refused(name: str, where: str) -> None:
    parse, base = PARSE[where]
    assert refused(parse, base | {name: ""}).startswith(f"{name} is empty: must be ")


def test_defaults_are_those_of_the_reference() -> None:
    options = source()
    assert options == SourceOptions(
        topics=("orders",),
        topic_pattern=None,
        channel="spark",
        servers=ServerOptions(nsqd=("a:4150",), nsqd_http=("a:4151",)),
        access=Access(),
        spool="/spool",
        spool_retention_batches=2,
        partitions_per_nsqd=1,
        max_messages_per_partition=None,
        max_messages_per_trigger=500_000,
        max_bytes_per_trigger=None,
        min_messages_per_trigger=None,
        max_trigger_delay=900.0,
        idle_timeout=0.5,
        msg_timeout=60.0,
        starting_position="existing",
        fail_on_data_loss=True,
        dedupe="redelivered",
        max_attempts=None,
        dead_letter_topic=None,
        include_metadata=True,
        mode="consume",
    )
    assert options.access == Access(
        tls=False, tls_verify=True, snappy=False, deflate=False, auth_secret=None
    )
    assert parse_sink(WRITE).max_batch_bytes == 1_000_000


def test_sparks_own_dictionary_is_accepted() -> None:
    from pyspark.sql.datasource import CaseInsensitiveDict

    given = CaseInsensitiveDict(READ | {"maxMessagesPerTrigger": "7"})
    assert set(given) >= {"maxmessagespertrigger", "spoollocation"}
    assert parse_stream(given) == source(maxMessagesPerTrigger="7")


@pytest.mark.parametrize("where", PARSE)
def test_options_go_to_the_executors_as_they_are(where: str) -> None:
    parse, base = PARSE[where]
    options = parse(base | {"authSecret": SECRET})
    assert pickle.loads(pickle.dumps(options)) == options


def test_nothing_secret_is_in_the_text_of_the_options() -> None:
    given = without(READ, "nsqd") | {"lookupd": f"http://u:{SECRET}@b", "authSecret": SECRET}
    options = parse_stream(given)
    assert options.access.auth_secret == SECRET
    assert options.servers.lookupd == (f"http://u:{SECRET}@b",)
    assert SECRET not in repr(options)
    options = source(nsqdHttp=f"http://u:{SECRET}@a")
    assert options.servers.nsqd_http == (f"http://u:{SECRET}@a",)
    assert SECRET not in repr(options)


# Names


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("authsecrt", "authSecret"),
        ("maxMessagePerTrigger", "maxMessagesPerTrigger"),
        ("spool_location", "spoolLocation"),
        ("topics", "topic"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_and_without_its_value(
    key: str, meant: str
) -> None:
    words = refused(parse_stream, READ | {key: SECRET})
    assert words.startswith(f"unknown option {key!r}; did you mean {meant!r}? known: ")
    assert SECRET not in words


def test_an_unknown_option_without_a_similar_one_gets_the_list_of_all() -> None:
    words = refused(parse_sink, WRITE | {"zzz": "1"})
    names = sorted(row.name for row in OPTIONS if row.applies_to("sink"))
    assert words == f"unknown option 'zzz'; known: {', '.join(names)}"


@pytest.mark.parametrize("where", PARSE)
@pytest.mark.parametrize("key", ["path", "paths"])
def test_a_path_is_refused_with_a_hint(where: str, key: str) -> None:
    parse, base = PARSE[where]
    assert "take no path; see option topic" in refused(parse, base | {key: "/data"})


def test_options_of_the_query_that_spark_passes_to_a_sink_are_ignored() -> None:
    given = {"checkpointlocation": "/checkpoint", "queryname": "copy"}
    assert parse_sink(WRITE | given) == parse_sink(WRITE)


@pytest.mark.parametrize("parse", [parse_stream, parse_batch])
def test_a_checkpoint_is_not_an_option_of_a_source(parse: Parse) -> None:
    words = refused(parse, READ | {"checkpointLocation": "/checkpoint"})
    assert words.startswith("checkpointLocation is an option of writeStream, not of read")


# Topics, servers, spool


@pytest.mark.parametrize("parse", [parse_stream, parse_batch])
def test_a_source_takes_either_topics_or_a_pattern(parse: Parse) -> None:
    assert refused(parse, READ | {"topicPattern": "a"}).startswith("both topic and topicPattern")
    assert refused(parse, without(READ, "topic")).startswith("neither topic nor topicPattern")


@pytest.mark.parametrize("parse", [parse_stream, parse_batch])
def test_a_source_takes_a_channel(parse: Parse) -> None:
    assert refused(parse, without(READ, "channel")).startswith("channel is missing: ")


def test_a_sink_may_do_without_a_topic_as_rows_can_have_their_own() -> None:
    assert parse_sink(without(WRITE, "topic")).topic is None


@pytest.mark.parametrize("where", PARSE)
def test_the_nsqd_are_found_in_one_way_and_not_in_two(where: str) -> None:
    parse, base = PARSE[where]
    assert refused(parse, base | {"lookupd": "b:4161"}).startswith("both lookupd and nsqd")
    assert refused(parse, without(base, "nsqd")).startswith("neither lookupd nor nsqd")


def test_http_is_at_the_next_port_by_default() -> None:
    assert source(nsqd="a:4150,[::1]:5").servers.nsqd_http == ("a:4151", "[::1]:6")
    given = {"nsqd": "a:4150,b:4150", "nsqdHttp": "c:1,https://d"}
    assert source(**given).servers.nsqd_http == ("c:1", "https://d")


def test_http_is_unknown_where_there_is_no_next_port() -> None:
    words = refused(parse_stream, READ | {"nsqd": "a:65535"})
    assert words == "nsqd 'a:65535' has no port + 1: give its HTTP address in nsqdHttp"
    assert source(nsqd="a:65535", nsqdHttp="a:80").servers.nsqd_http == ("a:80",)


def test_http_addresses_are_as_many_as_the_nsqd() -> None:
    words = refused(parse_stream, READ | {"nsqdHttp": "a:1,b:1"})
    assert words == "nsqdHttp has 2 addresses and nsqd 1: give one for each nsqd"
    given = without(READ, "nsqd") | {"lookupd": "b:4161", "nsqdHttp": "a:1"}
    assert "nsqdHttp has 1 addresses and nsqd 0" in refused(parse_stream, given)


@pytest.mark.parametrize("parse", [parse_stream, parse_batch])
def test_a_spool_is_needed_to_consume(parse: Parse) -> None:
    words = refused(parse, without(READ, "spoolLocation"))
    assert words.startswith("spoolLocation is missing: must be an absolute path")


def test_a_spool_location_is_checked_by_its_store() -> None:
    assert source(spoolLocation="file:///data//spool/").spool == "/data/spool"
    assert source(spoolLocation="s3a://bucket/spool").spool == "s3://bucket/spool"


def test_a_spool_elsewhere_is_refused_with_the_list_of_what_is_proven() -> None:
    words = refused(parse_stream, READ | {"spoolLocation": "hdfs://host/spool"})
    assert re.match("spoolLocation.*'hdfs://host/spool'.*s3://bucket/prefix", words)


def test_a_spool_is_not_needed_to_peek() -> None:
    assert parse_batch(without(READ, "spoolLocation") | {"mode": "peek"}).spool is None


# Access


def test_a_secret_is_given_in_one_way() -> None:
    given = READ | {"authSecret": SECRET, "authSecretFile": "/x", "authSecretEnv": "Y"}
    for left_out in ("authSecret", "authSecretFile", "authSecretEnv"):
        words = refused(parse_stream, without(given, left_out))
        assert words.endswith("are given: give one of them")
        assert left_out not in words.split()
        assert SECRET not in words


def test_compression_is_done_in_one_way() -> None:
    words = refused(parse_sink, WRITE | {"snappy": "true", "deflate": "true"})
    assert words == "both snappy and deflate are set: choose one of them"
    assert parse_sink(WRITE | {"snappy": "true", "deflate": "false"}).access.snappy


@pytest.mark.parametrize("name", ["tlsCaFile", "tlsCertFile", "tlsVerify"])
def test_an_option_of_tls_without_tls_is_refused(name: str) -> None:
    given = {name: VALUES[name][0]}
    words = refused(parse_stream, READ | given)
    assert words == f"{name} without tls: set tls=true, or nothing is encrypted"
    assert source(**given, nsqdHttp="https://a:4152").access.tls is False
    looked_up = without(READ, "nsqd") | {"lookupd": "HTTPS://b"}
    assert parse_stream(looked_up | given).access.tls is False


def test_a_key_needs_its_certificate() -> None:
    words = refused(parse_stream, READ | {"tls": "true", "tlsKeyFile": "/key.pem"})
    assert words.startswith("tlsKeyFile without tlsCertFile")


# Limits


def test_a_batch_cannot_be_made_to_wait_for_more_than_it_may_have() -> None:
    given = {"maxMessagesPerTrigger": "10", "minMessagesPerTrigger": "11"}
    words = refused(parse_stream, READ | given)
    assert words == "minMessagesPerTrigger=11 is invalid: must be <= maxMessagesPerTrigger (10)"
    assert source(**given | {"minMessagesPerTrigger": "10"}).min_messages_per_trigger == 10


def test_a_delay_without_anything_to_wait_for_is_refused() -> None:
    words = refused(parse_stream, READ | {"maxTriggerDelay": "5m"})
    assert words.startswith("maxTriggerDelay=300s is invalid without minMessagesPerTrigger: ")


def test_idle_timeout_must_be_less_than_msg_timeout() -> None:
    words = refused(parse_stream, READ | {"idleTimeout": "1m"})
    assert words == "idleTimeout=60s is invalid: must be less than msgTimeout (60s)"
    assert source(idleTimeout="1m", msgTimeout="61s").idle_timeout == 60.0


# Dead letters


def test_max_attempts_needs_a_dead_letter_topic() -> None:
    words = refused(parse_stream, READ | {"maxAttempts": "3"})
    assert words.startswith("deadLetterTopic is missing: ")
    words = refused(parse_stream, READ | {"deadLetterTopic": "dead"})
    assert words.startswith("maxAttempts is missing: ")


def test_the_dead_letter_topic_must_not_be_read() -> None:
    given = {"maxAttempts": "3", "deadLetterTopic": "orders"}
    words = refused(parse_stream, READ | given)
    assert words == "deadLetterTopic='orders' is invalid: must be a topic that is not read here"
    by_pattern = without(READ, "topic") | given
    assert refused(parse_stream, by_pattern | {"topicPattern": "ord.*"}) == words
    assert parse_stream(by_pattern | {"topicPattern": "ord"}).dead_letter_topic == "orders"


def test_importing_the_options_loads_nothing_heavy() -> None:
    program = (
        "import sys, nsqflow.spark.options; "
        "print({'asyncio', 'ssl', 'pyarrow', 'fsspec', 'pandas', 'pyspark'} & set(sys.modules))"
    )
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("set()", "")
