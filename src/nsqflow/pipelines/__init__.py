"""Pipelines: what is read from NSQ, done to it and written, said in a file and run on Spark.

    pipeline = load_pipeline(Path("views.toml"))

The command is ``nsqflow run``; every key of a file is in ``docs/pipelines.md``.
"""
