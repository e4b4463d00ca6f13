"""Who is let in, and how it is talked to: TLS, AUTH and compression through Spark."""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqflow.blocking import Producer
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import Nsqd, start_nsqd
from tests.fixtures.spark import published
from tests.spark.queries import (
    connected,
    new_topic,
    options_of,
    read_now,
    stream,
    table,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "hush-hush"


@pytest.fixture
def topic() -> str:
    return new_topic()


@pytest.mark.parametrize("method", ["snappy", "deflate"])
def test_what_goes_to_and_from_nsqd_is_compressed(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str, method: str
) -> None:
    with connected(spark, tmp_path, nsqd, topic, **{method: "true"}) as client:
        used = {name for name in ("snappy", "deflate", "tls") if client[name]}
        assert used == {method}
        assert client["user_agent"].startswith("nsqflow-spark/")


class Guarded:
    """An nsqd that requires TLS, a certificate and a secret, and HTTPS."""

    def __init__(self, nsqd: Nsqd, certificates: Certificates, auth: AuthServer) -> None:
        self.nsqd = nsqd
        self.auth = auth
        self._certificates = certificates
        self.tls = {
            "tls": "true",
            "tlsCaFile": str(certificates.ca),
            "tlsCertFile": str(certificates.cert),
            "tlsKeyFile": str(certificates.key),
        }

    def publish(self, topic: str, count: int) -> None:
        context = ssl.create_default_context(cafile=str(self._certificates.ca))
        context.load_cert_chain(self._certificates.cert, self._certificates.key)
        address = self.nsqd.tcp_address
        with Producer(address, tls=context, auth_secret=SECRET) as producer:
            producer.publish_many(topic, [b"%010d " % number for number in range(count)])


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Guarded]:
    # PYSPARK_PYTHON is a variable that driver and workers have alike.
    with AuthServer({SECRET: [Authorization()], sys.executable: [Authorization()]}) as auth:
        options = [
            "-tls-required=true",
            "-tls-client-auth-policy=require-verify",
            f"-tls-root-ca-file={certificates.ca}",
            f"-auth-http-address={auth.address}",
        ]
        folder = tmp_path_factory.mktemp("guarded")
        with start_nsqd(folder, tls=certificates, options=options) as nsqd:
            yield Guarded(nsqd, certificates, auth)


def test_a_stream_reads_from_an_nsqd_that_requires_tls_and_a_secret(
    spark: SparkSession, tmp_path: Path, guarded: Guarded, topic: str
) -> None:
    guarded.publish(topic, 10)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    secret = {"authSecretFile": str(tmp_path / "secret")}
    options = options_of(tmp_path, topic, guarded.nsqd) | guarded.tls | secret
    asked = len(guarded.auth.requests)
    query = read_now(stream(spark, options), tmp_path)
    assert query.numbers() == [*range(10)]
    assert {each["tls"] for each in guarded.auth.requests[asked:]} == {"true"}


@pytest.mark.parametrize(
    ("option", "value"), [("authSecret", SECRET), ("authSecretEnv", "PYSPARK_PYTHON")]
)
def test_the_secret_may_be_an_option_or_in_a_variable(
    spark: SparkSession, tmp_path: Path, guarded: Guarded, topic: str, option: str, value: str
) -> None:
    guarded.publish(topic, 10)
    options = options_of(tmp_path, topic, guarded.nsqd) | guarded.tls | {option: value}
    assert table(spark, options).count() == 10


def test_without_verification_no_authority_is_needed(
    spark: SparkSession, tmp_path: Path, guarded: Guarded, topic: str
) -> None:
    guarded.publish(topic, 10)
    options = options_of(tmp_path, topic, guarded.nsqd, authSecret=SECRET) | guarded.tls
    del options["tlsCaFile"]
    with pytest.raises(Exception, match="certificate verify failed"):
        table(spark, options).count()
    assert table(spark, options | {"tlsVerify": "false"}).count() == 10


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tlsCertFile": None, "tlsKeyFile": None}, "certificate required"),
        ({"authSecret": None}, "asks for AUTH: set authSecretFile, authSecretEnv or authSecret"),
        ({"authSecret": "not-the-secret"}, "E_AUTH_FAILED"),
        ({"tlsCaFile": "/no/such"}, "tlsCaFile='/no/such' is invalid: No such file"),
    ],
)
def test_a_refused_client_gets_the_reason_without_the_secret(
    spark: SparkSession,
    tmp_path: Path,
    guarded: Guarded,
    topic: str,
    change: dict[str, str | None],
    reason: str,
) -> None:
    guarded.publish(topic, 1)
    options = options_of(
        tmp_path, topic, guarded.nsqd, **{"authSecret": SECRET} | guarded.tls | change
    )
    with pytest.raises(Exception, match=re.escape(reason)) as caught:
        table(spark, options).count()
    assert SECRET not in str(caught.value)
    assert "not-the-secret" not in str(caught.value)


def test_no_plan_and_no_progress_shows_the_secret(
    spark: SparkSession,
    tmp_path: Path,
    nsqd: Nsqd,
    topic: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    published(nsqd, topic, 5)
    options = options_of(tmp_path, topic, nsqd, authSecret=SECRET)
    frame = table(spark, options)
    frame.explain(True)
    frame.explain("formatted")
    query = read_now(stream(spark, options), tmp_path)
    query.spark_query.explain(True)
    shown = capsys.readouterr().out
    assert "nsq" in shown
    assert SECRET not in f"{shown} {query.progress()} {frame!r} {query.spark_query.status}"
