"""The pytest fixture ``nsq_broker``."""

import asyncio
import re

import pytest

import nsqflow
from nsqflow import blocking
from nsqflow.broker import BackgroundBroker
from tests.fixtures.servers import ROOT

pytest_plugins = ["pytester"]


def test_the_fixture_works_in_a_plain_test(nsq_broker: BackgroundBroker) -> None:
    with blocking.Producer(nsq_broker.nsqd_addresses) as producer:
        producer.publish("orders", b"x")
    with blocking.Consumer("orders", "ch", lookupd=nsq_broker.lookupd_addresses) as consumer:
        message = next(iter(consumer))
        assert message.body == b"x"
        message.finish()


def test_the_fixture_works_in_an_async_test(nsq_broker: BackgroundBroker) -> None:
    async def main() -> None:
        async with nsqflow.Producer(nsq_broker.nsqd_addresses) as producer:
            await producer.publish("orders", b"x")

    asyncio.run(main())


@pytest.mark.nsq_broker(nodes=2, max_msg_size=10)
def test_the_marker_sets_the_options_of_the_broker(nsq_broker: BackgroundBroker) -> None:
    assert len(nsq_broker.nsqd_addresses) == 2
    with (
        blocking.Producer(nsq_broker.nsqd_addresses) as producer,
        pytest.raises(nsqflow.ServerError, match="E_BAD_MESSAGE"),
    ):
        producer.publish("orders", b"12345678901")


def test_pytest_finds_the_plugin_by_itself(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.nsq_broker(nodes=3)
        def test_it(nsq_broker):
            assert len(nsq_broker.nsqd_addresses) == 3
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers")
    done.assert_outcomes(passed=1)


def test_the_test_of_a_handler_in_the_docs_passes(pytester: pytest.Pytester) -> None:
    page = (ROOT / "docs" / "broker.md").read_text()
    (example,) = [
        block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "run_until" in block
    ]
    pytester.makepyfile(example)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
