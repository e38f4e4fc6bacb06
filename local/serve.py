"""`./run`: the local stack, until Ctrl-C."""

import time

from local.install import Installation
from local.ministack import ACCOUNT, Ministack
from local.say import Stop, note, step
from local.vendor import BROKEN_RELEASE, START_SECONDS, Outside


def main(port: int) -> int:
    """Starts everything, prints calls to try, and serves."""
    with step("starting the local AWS"):
        aws = Ministack(port)
    with aws:
        installation = Installation(aws)
        installation.set_up()
        print(_calls(installation), flush=True)
        note("running; Ctrl-C stops it.")
        outside = Outside(installation)
        while not aws.ended():
            outside.tick()
            time.sleep(1)
        raise Stop(f"the local AWS ended by itself; its log: {aws.log}")


def _calls(installation: Installation) -> str:
    api = installation.api
    return f"""
API  {api}
AWS  {installation.aws.url}  (any AWS tool: access key id {ACCOUNT}, any secret)

What is installed, what is pending, what may be installed:
  curl -s {api}/version
Begin an update; {START_SECONDS:.0f} seconds later its release check has passed: give the OK with the id of the answer, and watch:
  curl -s {api}/updates -H 'content-type: application/json' -d '{{"release":"2.4.0"}}'
  curl -s -X POST {api}/updates/ID/apply
  curl -s {api}/version
Or throw it away:
  curl -s -X POST {api}/updates/ID/discard
Its release check, what would hold it, and all updates:
  curl -s '{api}/model-check?release=2.4.0'
  curl -s '{api}/preflight?release=2.4.0'
  curl -s {api}/updates
Release {BROKEN_RELEASE} does not start and is rolled back.
"""
