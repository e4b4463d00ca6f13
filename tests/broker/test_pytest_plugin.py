"""The fixture ``nsq_broker``, as the users of the package have it."""

import asyncio

import pytest

import nsqflow
from nsqflow import blocking
from nsqflow.broker import BackgroundBroker

pytest_plugins = ["pytester"]


def test_a_plain_test_has_a_broker(nsq_broker: BackgroundBroker) -> None:
    with blocking.Producer(nsq_broker.nsqd_addresses) as producer:
        producer.publish("orders", b"x")
    with blocking.Consumer("orders", "ch", lookupd=nsq_broker.lookupd_addresses) as consumer:
        message = next(iter(consumer))
        assert message.body == b"x"
        message.finish()


def test_an_async_test_has_a_broker(nsq_broker: BackgroundBroker) -> None:
    async def main() -> None:
        async with nsqflow.Producer(nsq_broker.nsqd_addresses) as producer:
            await producer.publish("orders", b"x")

    asyncio.run(main())


@pytest.mark.nsq_broker(nodes=2, max_msg_size=10)
def test_the_mark_says_what_the_broker_is_like(nsq_broker: BackgroundBroker) -> None:
    assert len(nsq_broker.nsqd_addresses) == 2
    with (
        blocking.Producer(nsq_broker.nsqd_addresses) as producer,
        pytest.raises(nsqflow.ServerError, match="E_BAD_MESSAGE"),
    ):
        producer.publish("orders", b"12345678901")


def test_it_is_found_by_pytest_without_being_named(pytester: pytest.Pytester) -> None:
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
