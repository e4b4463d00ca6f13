"""What all tests share: which fixtures there are, and how hypothesis searches."""

import os

from hypothesis import settings

from tests.fixtures.signals import accept_signals

accept_signals()  # before anything is started: also in the workers of xdist

pytest_plugins = [
    "tests.fixtures.certificates",
    "tests.fixtures.s3",
    "tests.fixtures.servers",
    "tests.fixtures.spark",
]

# No deadline anywhere: how long one example takes says more about the machine than about the code.
# In CI the same examples every time, so that a red build is red for its own change; people's
# machines keep looking for new ones.
settings.register_profile("people", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "people")
