"""Runs the `petstore` command in tests, and returns its output and exit code."""

import contextlib
import io
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from harness.servers import PETSTORE, Server
from petstore.audit import AuditEntry
from petstore.cli import main
from petstore.keys import Environment


class Commands:
    """Runs commands on a server's data, whether or not the server is running."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.data = server.data

    @property
    def variables(self) -> dict[str, str]:
        return {**os.environ, **self.server.where}

    def run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a command in this process, to save Python's startup time."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(sys, "argv", ["petstore", *words]))
            stack.enter_context(mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO())))
            stack.enter_context(mock.patch.dict(os.environ, self.server.where))
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(err))
            stack.enter_context(contextlib.chdir(cwd or Path.cwd()))
            # Commands change the umask and the limit on core dumps.
            stack.callback(os.umask, os.umask(0o022))
            stack.callback(resource.setrlimit, resource.RLIMIT_CORE, resource.getrlimit(resource.RLIMIT_CORE))
            try:
                main()
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    def text(self, *words: str) -> str:
        """Returns the output of a command, which must succeed. Standard error may only mention new data and keys."""
        done = self.run(*words)
        message = done.stderr.replace(f"Created a store in {self.data.absolute()}\n", "")
        message = re.sub("^Try it: curl .*\n", "", message)
        assert (done.returncode, message) == (0, ""), done.stderr
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.text(*words, "--json"))

    def fails(self, *words: str) -> str:
        """Returns a command's error message. The command must exit with 2 and print nothing to standard output."""
        done = self.run(*words)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert done.stderr.startswith("petstore: ")
        assert done.stderr.endswith("\n")
        assert "Traceback" not in done.stderr
        return done.stderr.removeprefix("petstore: ").removesuffix("\n")

    def fails_in_one_line(self, *words: str) -> str:
        message = self.fails(*words)
        assert "\n" not in message
        return message

    def entries(self, environment: Environment = "live") -> list[AuditEntry]:
        """Returns the audit log, newest first."""
        found = self.server.act(lambda backends: backends.stores[environment].audit.find())
        return [entry for _, entry in found.entries]


class Processes(Commands):
    """Runs each command in a separate process."""

    def run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PETSTORE, *words],
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            cwd=cwd,
            env=self.variables,
        )
