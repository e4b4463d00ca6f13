"""Pipelines: a file says what to read from NSQ, transform and write; Spark runs it.

    pipeline = load_pipeline(Path("views.toml"))

The command is ``nsqflow run``; ``docs/pipelines.md`` lists every key of a file.
"""
