"""What happens outside Headgate in the demo, played here because no local AWS does it.

The release check: CodeBuild's build would run `release-check/release-check.sh` and put its report on the event
bus; the local AWS calls every build a success and runs nothing.

The application: at the end of an update it says whether it is well. Each release waits for this signal
(AWS::CloudFormation::WaitCondition), which is what makes an update take time, and fail, as real ones do.
"""

import json
import time
import urllib.request

from botocore.exceptions import ClientError

from local.install import BUCKET, INSTALL, LIST_KEY, Installation
from local.say import direct

BROKEN_RELEASE = "2.5.0"
BROKEN_REASON = "the application did not start: search index is missing"
# How long a check runs and an application starts in `./run`, in seconds.
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


def report_check(installation: Installation, release: str) -> bool:
    """Reports the check of a release as passed (contract 4.4), if one was started and is not judged yet."""
    _, check = installation.call("GET", f"/model-check?release={release}")
    if not check.get("build_id") or check["state"] in ("passed", "failed"):
        return False
    listed = json.loads(installation.s3.get_object(Bucket=BUCKET, Key=LIST_KEY)["Body"].read())
    detail = {
        "release": release,
        "attempt": check["attempt"],
        "build_id": check["build_id"],
        "verdict": "passed",
        "reason": None,
        "template_sha256": next(r["template_sha256"] for r in listed["releases"] if r["release"] == release),
        "models": [],
    }
    entry = {
        "Source": "headgate.release-check",
        "DetailType": "Release Check Reported",
        "Detail": json.dumps(detail),
    }
    return installation.aws.client("events").put_events(Entries=[entry])["FailedEntryCount"] == 0


class Outside:
    """Both while `./run` serves: some seconds after something has begun, it comes to its end."""

    def __init__(self, installation: Installation):
        self._installation = installation
        self._since: dict[str, float] = {}

    def tick(self) -> None:
        """To be called every second or so."""
        _, version = self._installation.call("GET", "/version")
        update = version.get("update") or {}
        release, state = update.get("to_release"), update.get("state")
        if state in ("preparing", "prepared") and self._is_time(f"check of {release}"):
            report_check(self._installation, release)
        if state == "applying" and self._is_time(f"start of {release} by {update['id']}"):
            signal(self._installation, release)

    def _is_time(self, what: str) -> bool:
        now = time.monotonic()
        return now - self._since.setdefault(what, now) >= START_SECONDS
