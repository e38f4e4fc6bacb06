"""Puts Headgate and the demo install onto a local AWS, the way a person would onto a real one."""

import hashlib
import json
import time
from pathlib import Path

from botocore.exceptions import ClientError

from local import expand
from local.codebuild import CodeBuild
from local.ministack import REGION, Ministack
from local.prepare import ROOT, build, functions
from local.say import Stop, step

RELEASES = ROOT / "local" / "releases"
# The product that Headgate looks after, and Headgate itself: two stacks.
INSTALL = "demo-install"
HEADGATE = "headgate"
FIRST_RELEASE = "2.3.0"
BUCKET = "vendor-releases"
LIST_KEY = "demo/releases.json"

# Waiting for a stack that does nothing slow.
STACK_SECONDS = 60.0


class Installation:
    """Headgate and the demo install on one local AWS."""

    def __init__(self, aws: Ministack, codebuild: CodeBuild):
        self.aws = aws
        self.codebuild = codebuild
        self.cloudformation = aws.client("cloudformation")
        self.s3 = aws.client("s3")
        self.outputs: dict[str, str] = {}

    @property
    def api(self) -> str:
        """Base URL of the HTTP API. By path: `<id>.execute-api.localhost` is not resolved everywhere."""
        return f"{self.aws.url}/_aws/execute-api/{self.outputs['ApiId']}"

    def set_up(self) -> None:
        """Builds the functions and installs everything; returns when the API can be called."""
        folder = build(functions())
        with step(f"installing the demo product at {FIRST_RELEASE} and Headgate beside it"):
            self.s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
            urls = self._publish()
            self._create(INSTALL, TemplateURL=urls[FIRST_RELEASE])
            self.outputs = self._headgate(folder)

    def _publish(self) -> dict[str, str]:
        """Uploads the release templates and the list (contract 4.2); gives each release's address."""
        listed = json.loads((RELEASES / "releases.json").read_text())
        urls = {}
        for entry in listed["releases"]:
            template = (RELEASES / f"{entry['release']}.yaml").read_bytes()
            key = f"demo/{entry['release']}/template.yaml"
            self.s3.put_object(Bucket=BUCKET, Key=key, Body=template)
            entry["template_url"] = urls[entry["release"]] = f"{self.aws.url}/{BUCKET}/{key}"
            entry["template_sha256"] = hashlib.sha256(template).hexdigest()
        self.s3.put_object(Bucket=BUCKET, Key=LIST_KEY, Body=json.dumps(listed).encode())
        return urls

    def _headgate(self, folder: Path) -> dict[str, str]:
        """Headgate's own stack, by a change set as `sam deploy` makes one; gives its outputs."""
        parameters = {
            "InstallStackName": INSTALL,
            "ReleasesUri": f"s3://{BUCKET}/{LIST_KEY}",
            # The caller check is off here, see expand.LOCAL_ENVIRONMENT; jwt would need an issuer.
            "AuthMode": "iam",
        }
        code = expand.upload_code(self.aws, BUCKET, folder)
        endpoints = {"AWS_ENDPOINT_URL_CODEBUILD": self.codebuild.url}
        key = "headgate/template.json"
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=expand.expand(code, parameters, endpoints).encode())
        return self._create(
            HEADGATE,
            TemplateURL=f"{self.aws.url}/{BUCKET}/{key}",
            Capabilities=["CAPABILITY_IAM"],
            Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()],
        )

    def _create(self, stack: str, **what) -> dict[str, str]:
        """Makes a stack by a change set, waits for it, gives its outputs."""
        cfn = self.cloudformation
        try:
            made = cfn.create_change_set(
                StackName=stack, ChangeSetName="install", ChangeSetType="CREATE", **what
            )
            cfn.execute_change_set(ChangeSetName=made["Id"])
        except ClientError as error:
            raise Stop(f"the stack {stack} could not be made: {error}") from error
        deadline = time.monotonic() + STACK_SECONDS
        while time.monotonic() < deadline:
            now = cfn.describe_stacks(StackName=stack)["Stacks"][0]
            if now["StackStatus"] == "CREATE_COMPLETE":
                return {o["OutputKey"]: o["OutputValue"] for o in now.get("Outputs", [])}
            if not now["StackStatus"].endswith("_IN_PROGRESS"):
                break
            time.sleep(0.05)
        events = cfn.describe_stack_events(StackName=stack)["StackEvents"]
        failed = [e for e in reversed(events) if e["ResourceStatus"].endswith("_FAILED")]
        why = f"{failed[0]['LogicalResourceId']}: {failed[0].get('ResourceStatusReason')}" if failed else "no reason given"
        raise Stop(f"the stack {stack} could not be made ({now['StackStatus']}): {why}")
