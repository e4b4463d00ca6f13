"""The queues of an nsqd, without sockets, files or a clock.

    body -> Topic -> a copy in each Channel's queue -> in flight to a Subscriber -> FIN

Times are nanoseconds since 1970 and an argument of every call that needs one. Everything that must
survive the process is reported to a ``Journal``, in order.
"""
