"""The admin library: every call against the real daemons, and what servers may do wrong."""

from __future__ import annotations

import pickle
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqflow.admin import AdminError, ChannelStats, Cluster, Lookupd, Nsqd, NsqdStats, TopicStats
from nsqflow.errors import (
    ConfigError,
    DiscoveryError,
    LocalProtocolError,
    NetworkError,
    PublishUncertain,
)
from nsqflow.protocol import LookupAnswer
from tests.conformance.web import HANG, RESET, WebServer, answer
from tests.fixtures import servers
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import Deed, asynchronous

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = re.findall(r"```python\n(.*?)```", (ROOT / "docs/admin.md").read_text(), re.DOTALL)

SPARSE = {
    "topics": [
        {"topic_name": "t", "channels": None, "events": 1},
        {"topic_name": "u", "channels": [{"channel_name": "c", "clients": [{}, {}]}]},
    ]
}


@pytest.fixture(scope="module")
def registered_nsqd(
    server_kind: servers.Kind,
    tmp_path_factory: pytest.TempPathFactory,
    nsqlookupd: servers.Nsqlookupd,
) -> Iterator[servers.Nsqd]:
    """An nsqd that nsqlookupd knows."""
    with servers.start_nsqd(
        tmp_path_factory.mktemp("nsqd"), kind=server_kind, lookupd=[nsqlookupd]
    ) as server:
        yield server


async def topic_of(nsqd: Nsqd, name: str) -> TopicStats:
    (topic,) = (await nsqd.stats(name)).topics
    return topic


async def channel_of(nsqd: Nsqd, topic: str, name: str) -> ChannelStats:
    (channel,) = (await nsqd.stats(topic, name)).topics[0].channels
    return channel


# --- nsqd


@asynchronous
async def test_nsqd_returns_its_info(nsqd: servers.Nsqd, version: str) -> None:
    async with Nsqd(nsqd.http_address) as admin:
        await admin.ping()
        info = await admin.info()
        stats = await admin.stats()
    assert info["version"] == stats.version == version
    assert f"{info['broadcast_address']}:{info['tcp_port']}" == nsqd.tcp_address
    assert (stats.health, stats.start_time) == ("OK", float(info["start_time"]))


@asynchronous
async def test_a_topic_lives_and_dies(nsqd: servers.Nsqd) -> None:
    async with Nsqd(nsqd.http_address) as admin:
        await admin.create_topic("ad_life")
        await admin.publish("ad_life", b"one")
        await admin.pause_topic("ad_life")
        topic = await topic_of(admin, "ad_life")
        assert topic == TopicStats(
            name="ad_life", depth=1, message_count=1, message_bytes=3, paused=True
        )
        await admin.unpause_topic("ad_life")
        await admin.empty_topic("ad_life")
        topic = await topic_of(admin, "ad_life")
        assert (topic.depth, topic.paused) == (0, False)
        await admin.delete_topic("ad_life")
        assert (await admin.stats("ad_life")).topics == ()


@asynchronous
async def test_a_channel_lives_and_dies(nsqd: servers.Nsqd) -> None:
    async with Nsqd(nsqd.http_address) as admin:
        await admin.create_topic("ad_channels")
        await admin.create_channel("ad_channels", "c")
        await admin.pause_channel("ad_channels", "c")
        assert (await channel_of(admin, "ad_channels", "c")).paused
        await admin.unpause_channel("ad_channels", "c")
        await admin.publish_many("ad_channels", [b"one", b"two\nlines"])
        await admin.publish("ad_channels", b"later", delay=3600)
        channel = await channel_of(admin, "ad_channels", "c")
        while channel.message_count < 3:  # nsqd hands them from topic to channel in its own time
            channel = await channel_of(admin, "ad_channels", "c")
        assert channel == ChannelStats(name="c", depth=2, deferred_count=1, message_count=3)
        await admin.empty_channel("ad_channels", "c")
        assert (await channel_of(admin, "ad_channels", "c")).depth == 0
        await admin.delete_channel("ad_channels", "c")
        assert (await topic_of(admin, "ad_channels")).channels == ()


@asynchronous
async def test_a_name_with_a_hash_is_the_name_that_nsqd_sees(nsqd: servers.Nsqd) -> None:
    async with Nsqd(nsqd.http_address) as admin:
        await admin.publish("ad_passing#ephemeral", b"x")
        await admin.create_channel("ad_passing#ephemeral", "c#ephemeral")
        topic = await topic_of(admin, "ad_passing#ephemeral")
    assert [channel.name for channel in topic.channels] == ["c#ephemeral"]


@asynchronous
async def test_clients_are_there_if_they_are_asked_for(nsqd: servers.Nsqd) -> None:
    async with Nsqd(nsqd.http_address) as admin:
        with nsqd.connect() as client:
            client.sendall(b"  V2SUB ad_clients c\n")
            assert client.recv(10) == b"\0\0\0\6\0\0\0\0OK"
            channel = await channel_of(admin, "ad_clients", "c")
            assert channel.client_count == 1
            assert [each["remote_address"] for each in channel.clients] == [
                "{}:{}".format(*client.getsockname())
            ]
            bare = (await admin.stats("ad_clients", "c", include_clients=False)).topics[0]
            assert (bare.channels[0].client_count, bare.channels[0].clients) == (1, ())


@asynchronous
async def test_options_are_read_and_changed_while_nsqd_runs(nsqd: servers.Nsqd) -> None:
    async with Nsqd(nsqd.http_address) as admin:
        assert await admin.config("mem_queue_size") == 10000
        level = await admin.config("log_level")
        assert await admin.set_config("log_level", "debug") == level - 1
        assert await admin.set_config("log_level", "info") == level
        assert await admin.set_config("nsqlookupd_tcp_addresses", []) == []
        with pytest.raises(AdminError, match="400 INVALID_OPTION"):
            await admin.set_config("mem_queue_size", 5)
        with pytest.raises(ConfigError, match=r"option '\.\./ping'"):
            await admin.config("../ping")


@asynchronous
async def test_https_is_used_where_the_address_says_so(
    nsqd: servers.Nsqd, certificates: Certificates
) -> None:
    trust = ssl.create_default_context(cafile=str(certificates.ca))
    async with Nsqd(f"https://{nsqd.https_address}", tls=trust) as admin:
        await admin.ping()


# --- nsqlookupd


@asynchronous
async def test_nsqlookupd_keeps_what_nsqd_registers(
    nsqlookupd: servers.Nsqlookupd, version: str
) -> None:
    async with Lookupd(nsqlookupd.http_address) as admin:
        await admin.ping()
        assert await admin.info() == {"version": version}
        await admin.create_topic("al_listed")
        await admin.create_channel("al_listed", "c#ephemeral")
        assert "al_listed" in await admin.topics()
        assert await admin.channels("al_listed") == ("c#ephemeral",)
        assert await admin.lookup("al_listed") == LookupAnswer(channels=("c#ephemeral",))
        await admin.delete_channel("al_listed", "c#ephemeral")
        assert await admin.channels("al_listed") == ()
        await admin.delete_topic("al_listed")
        assert "al_listed" not in await admin.topics()
        assert await admin.lookup("al_listed") == LookupAnswer()


@pytest.mark.parametrize("as_text", [False, True])
@asynchronous
async def test_a_tombstone_hides_an_nsqd_from_a_topic(
    registered_nsqd: servers.Nsqd, nsqlookupd: servers.Nsqlookupd, as_text: bool
) -> None:
    topic = f"al_grave_{as_text}"
    async with (
        Nsqd(registered_nsqd.http_address) as nsqd,
        Lookupd(nsqlookupd.http_address) as admin,
    ):
        await nsqd.create_topic(topic)
        nsqlookupd.await_log(f"REGISTER category:topic key:{topic} ")
        (node,) = (await admin.lookup(topic)).producers
        assert node.address == registered_nsqd.tcp_address
        await admin.tombstone(topic, registered_nsqd.http_address if as_text else node)
        assert (await admin.lookup(topic)).producers == ()
        assert node in await admin.nodes()


# --- what is refused, and what goes wrong


@asynchronous
async def test_a_refusal_has_the_status_and_the_words_of_the_server(nsqd: servers.Nsqd) -> None:
    async with Nsqd(nsqd.http_address) as admin:
        with pytest.raises(AdminError) as caught:
            await admin.delete_topic("ad_unheard_of")
        error = caught.value
        assert (error.status, error.message) == (404, "TOPIC_NOT_FOUND")
        assert str(error) == f"{nsqd.http_address}/topic/delete: 404 TOPIC_NOT_FOUND"
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        with pytest.raises(AdminError, match="400 INVALID_DEFER"):
            await admin.publish("ad_any", b"x", delay=10**6)


@asynchronous
async def test_a_message_too_large_is_refused_in_words(nsqd: servers.Nsqd) -> None:
    async with Nsqd(nsqd.http_address) as admin:
        with pytest.raises(AdminError, match="413 MSG_TOO_BIG"):
            await admin.publish("ad_large", bytes(10 * 1024 * 1024))


@asynchronous
async def test_what_cannot_work_is_not_even_sent() -> None:
    async with WebServer(lambda _: HANG) as server:
        nsqd, lookupd = Nsqd(server.address), Lookupd(server.address)
        with pytest.raises(ConfigError, match="topic name 'a b'"):
            await nsqd.create_topic("a b")
        with pytest.raises(ConfigError, match="channel name ''"):
            await nsqd.pause_channel("a", "")
        with pytest.raises(ConfigError, match="topic name ''"):
            await nsqd.stats("")
        with pytest.raises(ConfigError, match="delay=-1"):
            await nsqd.publish("a", b"x", delay=-1)
        with pytest.raises(LocalProtocolError, match="empty message body"):
            await nsqd.publish("a", b"")
        with pytest.raises(LocalProtocolError, match="empty message body at index 1"):
            await nsqd.publish_many("a", [b"x", b""])
        with pytest.raises(ConfigError, match="topic name 'é'"):
            await lookupd.lookup("é")
        with pytest.raises(ConfigError, match="node='nsqd-1'"):
            await lookupd.tombstone("a", "nsqd-1")
        assert server.connections == []


@pytest.mark.parametrize("behaviour", [HANG, RESET])
@asynchronous
async def test_a_publish_that_is_not_answered_is_uncertain(behaviour: Deed) -> None:
    async with WebServer(lambda _: behaviour) as server, Nsqd(server.address, timeout=0.2) as admin:
        with pytest.raises(PublishUncertain, match=server.address):
            await admin.publish("orders", b"x")
        with pytest.raises(PublishUncertain, match=server.address):
            await admin.publish_many("orders", [b"x"])
    async with Nsqd(server.address) as admin:
        with pytest.raises(NetworkError):
            await admin.publish("orders", b"x")


@pytest.mark.parametrize("content", [SPARSE, {"status_code": 200, "data": SPARSE}])
@asynchronous
async def test_stats_need_only_the_fields_that_a_server_sends(content: object) -> None:
    channel = ChannelStats(name="c", client_count=2, clients=({}, {}))
    topics = (TopicStats(name="t"), TopicStats(name="u", channels=(channel,)))
    async with WebServer(lambda _: answer(200, content)) as server:
        assert await Nsqd(server.address).stats() == NsqdStats(topics=topics)


@pytest.mark.parametrize(
    "content",
    [
        *(b"<html>", [], {"topics": 1}, {"topics": [1]}, {"topics": [{"depth": "many"}]}),
        {"status_code": 500, "status_txt": "INTERNAL_ERROR", "data": None},
    ],
)
@asynchronous
async def test_unusable_stats_are_an_admin_error(content: object) -> None:
    async with WebServer(lambda _: answer(200, content)) as server:
        with pytest.raises(AdminError, match=f"{server.address}/stats"):
            await Nsqd(server.address).stats()


@asynchronous
async def test_no_secret_is_shown() -> None:
    admin = Nsqd("http://user:hunter2@nsqd:4151", headers={"X-Key": "hunter2"})
    assert repr(admin) == "Nsqd('nsqd:4151')"
    assert admin.address == "nsqd:4151"


def test_the_example_in_the_documentation_works(
    registered_nsqd: servers.Nsqd,
    nsqlookupd: servers.Nsqlookupd,
    version: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (example,) = EXAMPLE
    for written, real in [
        ("127.0.0.1:4151", registered_nsqd.http_address),
        ("127.0.0.1:4161", nsqlookupd.http_address),
    ]:
        assert example.count(written) == 1
        example = example.replace(written, real)
    exec(example, {})
    printed = capsys.readouterr().out
    assert printed.startswith("orders billing ")
    assert f"{registered_nsqd.tcp_address} {version}\n" in printed


# --- a cluster


@asynchronous
async def test_a_cluster_of_nsqlookupd_with_one_that_is_down(
    registered_nsqd: servers.Nsqd, nsqlookupd: servers.Nsqlookupd
) -> None:
    topic, cluster = "of-a-cluster", Cluster(lookupd=[nsqlookupd.http_address, "127.0.0.1:1"])
    found = {node.address: node for node in await cluster.nodes()}
    node = found[registered_nsqd.tcp_address]
    assert node.registration is not None
    await node.http.create_topic(topic)
    await node.http.create_channel(topic, "archive")
    nsqlookupd.await_log(f"REGISTER category:channel key:{topic} subkey:archive")
    assert topic in await cluster.topics()
    assert await cluster.channels(topic) == ["archive"]
    answer = (await cluster.lookup(["nowhere", topic]))[topic]
    assert [one.address for one in answer.producers] == [node.address]
    stats = {one.address: stats.topics for one, stats in await cluster.stats(topic)}
    assert [channel.name for channel in stats[node.address][0].channels] == ["archive"]
    assert {str(error).partition(": ")[0] for error in cluster.errors} == {"127.0.0.1:1"}


@asynchronous
async def test_a_cluster_of_named_nsqd(nsqd: servers.Nsqd) -> None:
    topic = "of-named-nsqd"
    cluster = Cluster(nsqd=["a:1", "b:2"], nsqd_http=[nsqd.http_address, "127.0.0.1:1"])
    first, second = await cluster.nodes()
    assert (first.address, second.address) == ("a:1", "b:2")
    await first.http.create_topic(topic)
    await first.http.create_channel(topic, "archive")
    assert topic in await cluster.topics()
    assert await cluster.channels(topic) == ["archive"]
    assert await cluster.channels("nowhere") == []
    (answer,) = await cluster.stats(topic)
    assert answer[0].address == "a:1"
    assert cluster.errors


@asynchronous
async def test_a_cluster_without_a_server_that_answers() -> None:
    cluster = Cluster(lookupd=["127.0.0.1:1", "127.0.0.1:2"])
    with pytest.raises(
        DiscoveryError, match=r"no server is reachable: 127.0.0.1:1: .*; 127.0.0.1:2: "
    ):
        await cluster.topics()
    assert cluster.errors == []
    with pytest.raises(ConfigError, match=r"nsqd /tmp/socket .* nsqd_http"):
        await Cluster(nsqd=["/tmp/socket"]).nodes()
