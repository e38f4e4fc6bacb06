"""`./run`: the local stack, until Ctrl-C."""

import json
import time

from local.codebuild import CodeBuild
from local.install import RELEASES, Installation
from local.ministack import ACCOUNT, Ministack
from local.say import Stop, note, step
from local.vendor import BROKEN_RELEASE, Application


def main(port: int) -> int:
    """Starts everything, prints calls to try, and serves."""
    with step("starting the local AWS"):
        aws = Ministack(port)
    with aws, CodeBuild(aws) as codebuild:
        installation = Installation(aws, codebuild)
        installation.set_up()
        releases = [entry["release"] for entry in json.loads((RELEASES / "releases.json").read_text())["releases"]]
        print(_calls(installation), flush=True)
        note("running; Ctrl-C stops it.")
        application = Application(installation, releases)
        while not aws.ended():
            application.tick()
            time.sleep(1)
        raise Stop(f"the local AWS ended by itself; its log: {aws.log}")


def _calls(installation: Installation) -> str:
    api = installation.api
    return f"""
API  {api}
AWS  {installation.aws.url}  (any AWS tool: access key id {ACCOUNT}, any secret)

What is installed, what is pending, what may be installed:
  curl -s {api}/version
Begin an update, then give the OK with the id of the answer, then watch:
  curl -s {api}/updates -H 'content-type: application/json' -d '{{"release":"2.4.0"}}'
  curl -s -X POST {api}/updates/ID/apply
  curl -s {api}/version
Or throw it away:
  curl -s -X POST {api}/updates/ID/discard
All updates:
  curl -s {api}/updates
Release {BROKEN_RELEASE} does not start and is rolled back.
"""
