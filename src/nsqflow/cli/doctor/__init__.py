"""``nsqflow doctor``: checks servers, Java and Spark, and suggests fixes."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from nsqflow.cli import errors
from nsqflow.cli.coroutines import run_async, run_in_thread
from nsqflow.cli.doctor.environment import check_environment, check_spool
from nsqflow.cli.doctor.finding import NOTE, OK, PROBLEM, Finding
from nsqflow.cli.doctor.servers import check_servers
from nsqflow.cli.lists import JsonOption
from nsqflow.cli.servers import CliServers
from nsqflow.cli.terminal import console, count, escape, on_terminal, print_json

_STYLES = {OK: "green", NOTE: "yellow", PROBLEM: "bold red"}


def doctor(
    servers: CliServers,
    spool: Annotated[
        str | None,
        typer.Option(
            "--spool",
            metavar="LOCATION",
            help="Also check a location for the spool: a path, or s3://bucket/prefix.",
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Check servers, clocks, Java, Spark and the spool, and suggest fixes.

    The exit code is 1 if there is a problem.

    Example:
      $ nsqflow doctor
      $ nsqflow doctor --spool "$PWD/spool" --json
    """
    findings = run_async(_check(servers, spool), "checking servers, Java and Spark")
    for finding in findings:
        if json:
            print_json(asdict(finding))
        else:
            _show(finding)
    bad, notes = (sum(finding.state == state for finding in findings) for state in (PROBLEM, NOTE))
    if not json:
        good = f"nothing to fix, {count(notes, 'note')}" if notes else "no problems found"
        print(f"{count(bad, 'thing')} to fix" if bad else good)
    return errors.FAILED if bad else errors.OK


async def _check(servers: CliServers, spool: str | None) -> list[Finding]:
    environment, found = await asyncio.gather(
        run_in_thread(check_environment), check_servers(servers)
    )
    spools = [] if spool is None else [await run_in_thread(lambda: check_spool(spool))]
    return [*environment, *found, *spools]


def _show(finding: Finding) -> None:
    line = escape(f"{finding.subject}: {finding.text}")
    remedy = f"       {escape(finding.remedy)}" if finding.remedy else ""
    if on_terminal():
        from rich.text import Text

        screen = console()
        screen.print(Text.assemble((f"{finding.state:<5}", _STYLES[finding.state]), "  ", line))
        if remedy:
            screen.print(Text(remedy, style="dim"))
    else:
        print(f"{finding.state:<5}  {line}")
        if remedy:
            print(remedy)
