"""TLS, compression and secrets of the sink, with the leaders of partitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from nsqflow.broker import BackgroundBroker
from nsqflow.errors import NsqError, TlsNotGrantedError
from nsqflow.spark.sink.task import NsqCommitMessage
from nsqflow.spark.sink.writer import NsqWriter
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates

SECRET = "hunter2"
TOPIC = "orders"


@pytest.fixture(scope="module")
def strict(certificates: Certificates) -> Iterator[BackgroundBroker]:
    """A cluster that wants TLS and a secret."""
    with (
        AuthServer({SECRET: [Authorization()]}) as auth,
        BackgroundBroker(
            "redesigned",
            auth_http_address=(auth.address,),
            tls_cert=str(certificates.cert),
            tls_key=str(certificates.key),
            tls_required="tcp-https",
        ) as broker,
    ):
        broker.create_topic(TOPIC, 2, ordered=True)
        yield broker


def write(broker: BackgroundBroker, **options: str) -> NsqCommitMessage:
    schema = StructType().add("body", BinaryType()).add("key", BinaryType())
    given = {"lookupd": ",".join(broker.lookupd_addresses), "topic": TOPIC} | options
    values = pa.array([b"%d" % n for n in range(100)], pa.binary())
    batch = pa.RecordBatch.from_arrays([values, values], names=["body", "key"])
    return NsqWriter(schema, given).write(iter([batch]))


@pytest.mark.parametrize("compression", [{}, {"snappy": "true"}, {"deflate": "true"}])
def test_it_encrypts_compresses_and_shows_its_secret(
    strict: BackgroundBroker,
    certificates: Certificates,
    tmp_path: Path,
    compression: dict[str, str],
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    access = {"tls": "true", "tlsCaFile": str(certificates.ca), "authSecretFile": str(secret)}
    assert sum(write(strict, **access, **compression).partitions.values()) == 100


def test_a_secret_that_is_missing_is_named_by_its_options_at_once(
    strict: BackgroundBroker, certificates: Certificates
) -> None:
    with pytest.raises(NsqError, match="set authSecretFile, authSecretEnv or authSecret"):
        write(strict, tls="true", tlsCaFile=str(certificates.ca))


def test_a_secret_that_is_refused_fails_at_once_and_is_not_shown(
    strict: BackgroundBroker, certificates: Certificates
) -> None:
    access = {"tls": "true", "tlsCaFile": str(certificates.ca), "authSecret": "swordfish"}
    with pytest.raises(NsqError) as caught:
        write(strict, **access)
    assert "E_AUTH_FAILED" in str(caught.value)
    assert "swordfish" not in str(caught.value)


def test_tls_that_nsqd_does_not_offer_fails_at_once() -> None:
    with BackgroundBroker("redesigned") as plain:
        plain.create_topic(TOPIC)
        with pytest.raises(TlsNotGrantedError):
            write(plain, tls="true")
