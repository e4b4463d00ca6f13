"""A cluster of the redesigned NSQ without sockets, files or a clock.

    bodies -> PartitionLog -> a cursor in each PartitionChannel -> in flight -> FIN

A topic has partitions; a partition has a log and is led by one node. Its channels do not have
copies of messages but positions in the log. Times are nanoseconds since 1970 and an argument of
every call that needs one.
"""
