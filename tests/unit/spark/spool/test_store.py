"""Which locations a spool may have, and what a store must prove before it is taken."""

import subprocess
import sys
from pathlib import Path

import pytest

from nsqflow.errors import ConfigError
from nsqflow.spark.spool.local_store import LocalStore
from nsqflow.spark.spool.store import Buffers, check_location, open_store


@pytest.mark.parametrize(
    ("location", "canonical"),
    [
        ("/var/spool/nsq", "/var/spool/nsq"),
        ("/var//spool/./nsq/", "/var/spool/nsq"),
        ("/with space/ünicode/a:b@c", "/with space/ünicode/a:b@c"),
        ("file:///var/spool", "/var/spool"),
        ("file:/var/spool/", "/var/spool"),
        ("FILE:///var/spool", "/var/spool"),
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("s3a://my.bucket-1/a//b/", "s3://my.bucket-1/a/b"),
    ],
)
def test_a_location_has_one_canonical_form(location: str, canonical: str) -> None:
    assert check_location(location) == canonical
    assert check_location(canonical) == canonical
    assert open_store(location).location == canonical


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("", "not an absolute path"),
        ("spool", "not an absolute path"),
        ("./spool", "not an absolute path"),
        ("C:\\spool", "not an absolute path"),
        ("file://host/spool", "not an absolute path"),
        ("file:spool", "not an absolute path"),
        ("/", "it names no folder"),
        ("file:///", "it names no folder"),
        ("/spool/../etc", "'..' is not allowed"),
        ("/spool\n", "it has a character that can't be printed"),
        ("/spool\0", "it has a character that can't be printed"),
        ("s3://", "no valid bucket"),
        ("s3:/bucket/spool", "no valid bucket"),
        ("s3:///spool", "no valid bucket"),
        ("s3://Bucket/spool", "no valid bucket"),
        ("s3://b/spool", "no valid bucket"),
        ("s3://bucket", "it names no folder"),
        ("s3://bucket/", "it names no folder"),
        ("s3://bucket/../other", "'..' is not allowed"),
        ("s3://bucket/spool?versionId=1", "'?' is not allowed"),
        ("hdfs://namenode/spool", "hdfs is not among the stores proven"),
        ("gs://bucket/spool", "gs is not among the stores proven"),
        ("abfss://container@account/spool", "abfss is not among the stores proven"),
        ("dbfs:/spool", "dbfs is not among the stores proven"),
        ("memory://spool", "memory is not among the stores proven"),
    ],
)
def test_an_invalid_location_is_named_with_what_is_allowed(location: str, why: str) -> None:
    for refusing in (check_location, open_store):
        with pytest.raises(ConfigError) as caught:
            refusing(location)
        text = str(caught.value)
        assert text.startswith("spoolLocation=")
        assert why in text
        assert "must be an absolute path, file:///path, s3://bucket/prefix" in text
        assert "\n" not in text


def test_a_location_that_is_refused_is_shown() -> None:
    with pytest.raises(ConfigError, match="'hdfs://namenode/spool'"):
        check_location("hdfs://namenode/spool")


@pytest.mark.parametrize(
    "location", ["s3://KEY:s3cr3t@bucket/spool", "s3a://KEY:s3cr/3t@bucket", "gs://s3cr3t@bucket/a"]
)
def test_keys_in_an_address_are_refused_and_not_shown(location: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_location(location)
    assert "s3cr" not in str(caught.value)
    assert "KEY" not in str(caught.value)
    assert "bucket" in str(caught.value)


def test_nothing_heavy_is_loaded_until_a_store_on_s3_is_used(tmp_path: Path) -> None:
    script = """
import sys
from nsqflow.spark.spool.store import check_location, open_store
check_location("s3://bucket/spool")
open_store(sys.argv[1]).probe()
heavy = {"asyncio", "fsspec", "s3fs", "botocore", "pyarrow", "pandas", "ssl", "pyspark"}
print(sorted(heavy & set(sys.modules)))
"""
    run = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.check_output(run, text=True, timeout=60).strip() == "[]"


def test_a_store_that_works_is_left_as_it_was(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.write("before", b"1")
    store.probe()
    assert [path.name for path in tmp_path.iterdir()] == ["before"]


class Careless(LocalStore):
    """Creates what exists already, as a store does that knows no conditions."""

    def create(self, name: str, data: Buffers, *, durable: bool = True) -> bool:
        self.write(name, b"".join(data))
        return True


class Lying(LocalStore):
    """Says that it created what it did not."""

    def create(self, name: str, data: Buffers, *, durable: bool = True) -> bool:
        super().create(name, data)
        return True


class Forgetful(LocalStore):
    """Lists what was there before."""

    def names(self, folder: str) -> list[str]:
        return []


class Clinging(LocalStore):
    """Lists what is there no more."""

    def names(self, folder: str) -> list[str]:
        return ["object"]


@pytest.mark.parametrize(
    ("store", "why"),
    [
        (Careless, "create is not exclusive there"),
        (Lying, "create is not exclusive there"),
        (Forgetful, "lists don't keep up with changes"),
        (Clinging, "lists don't keep up with changes"),
    ],
)
def test_a_store_that_breaks_a_promise_is_refused(
    tmp_path: Path, store: type[LocalStore], why: str
) -> None:
    with pytest.raises(ConfigError, match=f"^spoolLocation '{tmp_path}': {why}$"):
        store(str(tmp_path)).probe()
    assert list(tmp_path.iterdir()) == []


class Failing(LocalStore):
    """One of its methods fails, with an error of more than one line."""

    def __init__(self, location: str, method: str) -> None:
        super().__init__(location)
        setattr(self, method, self.fail)

    def fail(self, *_: object) -> None:
        raise RuntimeError("it is\n  broken")


@pytest.mark.parametrize(
    ("method", "what"),
    [
        ("create", "create an object"),
        ("read", "read an object"),
        ("write", "replace an object"),
        ("names", "list a folder"),
        ("remove", "remove a folder"),
    ],
)
def test_a_probe_says_in_one_line_what_does_not_work(
    tmp_path: Path, method: str, what: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Failing(str(tmp_path), method).probe()
    assert str(caught.value) == f"spoolLocation '{tmp_path}': can't {what}: it is broken"
    assert isinstance(caught.value.__cause__, RuntimeError)
