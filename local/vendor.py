"""The application of the demo install: says at the end of an update whether it is well.

Each release that Headgate can install waits for this signal (AWS::CloudFormation::WaitCondition), which is what
makes an update take time, and fail, as real ones do.
"""

import json
import time
import urllib.request

from botocore.exceptions import ClientError

from local.install import INSTALL, Installation
from local.say import direct

BROKEN_RELEASE = "2.5.0"
BROKEN_REASON = "the application did not start: search index is missing"
# How long the application takes to start in `./run`, in seconds.
START_SECONDS = 8.0


def signal(installation: Installation, release: str) -> bool:
    """Sends the signal of a release, once CloudFormation has got so far that it can be sent."""
    logical_id = f"Ready{release.replace('.', '')}Signal"
    try:
        found = installation.cloudformation.describe_stack_resource(StackName=INSTALL, LogicalResourceId=logical_id)
    except ClientError:
        return False
    address = found["StackResourceDetail"].get("PhysicalResourceId", "")
    if not address.startswith("http"):
        return False
    well = release != BROKEN_RELEASE
    body = {
        "Status": "SUCCESS" if well else "FAILURE",
        "Reason": "the application answers" if well else BROKEN_REASON,
        "UniqueId": f"application-{release}",
        "Data": release,
    }
    request = urllib.request.Request(address, json.dumps(body).encode(), {"content-type": ""}, method="PUT")
    with direct.open(request, timeout=10):
        return True


class Application:
    """The application while `./run` serves: some seconds after an update has begun, it gives its signal."""

    def __init__(self, installation: Installation, releases: list[str]):
        self._installation = installation
        self._releases = releases
        self._since: float | None = None

    def tick(self) -> None:
        """To be called every second or so."""
        stack = self._installation.cloudformation.describe_stacks(StackName=INSTALL)["Stacks"][0]
        if stack["StackStatus"] != "UPDATE_IN_PROGRESS":
            self._since = None
            return
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since < START_SECONDS:
            return
        for release in self._releases:
            # Only the release that is being installed waits; another's signal reaches nobody.
            if signal(self._installation, release):
                self._since = now
