"""The queues of an nsqd, without a socket, a file or a clock.

    a body -> Topic -> a copy in each Channel's Backlog -> in flight to a Subscriber -> FIN

Times are nanoseconds since 1970, and an argument of every call that needs one. What must
outlive the process is told to a ``Journal`` in the order in which it happened.
"""
