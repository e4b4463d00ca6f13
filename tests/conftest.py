"""What all tests share: which fixtures there are, and how hypothesis searches."""

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.fixtures.signals import accept_signals

accept_signals()  # before anything is started: also in the workers of xdist

# They compare what arrives with what should, so their failures must show both. Here, as tests of
# several folders import them.
for module in ("asking", "dialogue", "peers"):
    pytest.register_assert_rewrite(f"tests.conformance.broker.{module}")

pytest_plugins = [
    "tests.fixtures.certificates",
    "tests.fixtures.s3",
    "tests.fixtures.servers",
    "tests.fixtures.spark",
]

# No deadline anywhere: how long one example takes says more about the machine than about the code.
# In CI the same examples every time, so that a red build is red for its own change; people's
# machines keep looking for new ones.
# How long examples take to generate depends on what else the machine does.
settings.register_profile("people", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("people"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "people")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End with another code than that of failed tests if some could not be collected.

    ``./dev test`` runs failed tests once more, and what was not collected is not among them.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    errors = reporter.stats.get("error", []) if reporter else []
    if any(isinstance(report, pytest.CollectReport) for report in errors):
        session.exitstatus = pytest.ExitCode.INTERRUPTED
