"""One run of nsqflow on uvloop."""

import uvloop

from benchmarks.clients.nsqflow_worker import SCENARIOS
from benchmarks.clients.worker import main, on_loop

if __name__ == "__main__":
    main(on_loop(SCENARIOS, uvloop.run))
