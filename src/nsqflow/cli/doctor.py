"""The verb doctor: finds out what is wrong, and says how to mend it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from nsqflow.cli import errors
from nsqflow.cli.checkup import examine_servers
from nsqflow.cli.equipment import examine_equipment, examine_spool
from nsqflow.cli.finding import NOTE, OK, WRONG, Finding
from nsqflow.cli.lists import JsonOption
from nsqflow.cli.screen import clean, console, count, emit, on_terminal
from nsqflow.cli.servers import ConfigOption, LookupdOption, NsqdHttpOption, NsqdOption, Servers
from nsqflow.cli.signals import aside, run

_STYLES = {OK: "green", NOTE: "yellow", WRONG: "bold red"}


def doctor(
    spool: Annotated[
        str | None,
        typer.Option(
            "--spool",
            metavar="LOCATION",
            help="Also try whether a spool can be there: a path, or s3://bucket/prefix.",
        ),
    ] = None,
    json: JsonOption = False,
    lookupd: LookupdOption = None,
    nsqd: NsqdOption = None,
    nsqd_http: NsqdHttpOption = None,
    config: ConfigOption = None,
) -> int:
    """Look at servers, clocks, Java, Spark and spool; say what is wrong, and how to mend it.

    The exit code is 1 if something is.

    Example:
      $ nsqflow doctor
      $ nsqflow doctor --spool "$PWD/spool" --json
    """
    servers = Servers.of(lookupd, nsqd, nsqd_http, config)
    findings = run(_examine(servers, spool), "looking at servers, Java and Spark")
    for finding in findings:
        if json:
            emit(asdict(finding))
        else:
            _show(finding)
    bad, remarked = (sum(finding.state == state for finding in findings) for state in (WRONG, NOTE))
    if not json:
        good = f"nothing to mend, {count(remarked, 'note')}" if remarked else "all is well"
        print(f"{count(bad, 'thing')} to mend" if bad else good)
    return errors.FAILED if bad else errors.OK


async def _examine(servers: Servers, spool: str | None) -> list[Finding]:
    equipment, found = await asyncio.gather(aside(examine_equipment), examine_servers(servers))
    spools = [] if spool is None else [await aside(lambda: examine_spool(spool))]
    return [*equipment, *found, *spools]


def _show(finding: Finding) -> None:
    line = clean(f"{finding.subject}: {finding.text}")
    remedy = f"       {clean(finding.remedy)}" if finding.remedy else ""
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
