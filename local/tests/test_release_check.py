"""The release check: its real script on the local AWS, and the template that carries it.

    .venv/bin/python -m unittest discover -s local/tests -t .
"""

import hashlib
import json
import os
import subprocess
import unittest

from local import expand
from local.codebuild import SCRIPT, _tools
from local.ministack import ACCOUNT, REGION, Ministack
from local.prepare import ROOT

IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/shop"
TEMPLATE = """
AWSTemplateFormatVersion: "2010-09-09"
Parameters:
  Tag: { Type: String, Default: "9" }
  Worker:
    Type: String
    Default: WORKER
Resources:
  Api:
    Type: AWS::SSM::Parameter
    Properties: { Type: String, Value: x }
Metadata:
  Containers:
    - Image: IMAGE
    - Image: !Ref Worker
    - Image: !Sub "${AWS::AccountId}.dkr.ecr.${AWS::Region}.amazonaws.com/shop:1"
"""


class ReleaseCheck(unittest.TestCase):
    """Runs the script as CodeBuild would and reads what arrives on the event bus."""

    @classmethod
    def setUpClass(cls):
        cls.aws = Ministack()
        cls.s3 = cls.aws.client("s3")
        cls.sqs = cls.aws.client("sqs")
        cls.ecr = cls.aws.client("ecr")
        cls.s3.create_bucket(Bucket="releases", CreateBucketConfiguration={"LocationConstraint": REGION})
        cls.ecr.create_repository(repositoryName="shop")
        manifest = json.dumps({"schemaVersion": 2, "config": {}, "layers": []})
        cls.ecr.put_image(repositoryName="shop", imageManifest=manifest, imageTag="1")
        cls.queue = cls.sqs.create_queue(QueueName="reports")["QueueUrl"]
        arn = cls.sqs.get_queue_attributes(QueueUrl=cls.queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        events = cls.aws.client("events")
        pattern = {"source": ["headgate.release-check"], "detail-type": ["Release Check Reported"]}
        events.put_rule(Name="reports", EventPattern=json.dumps(pattern))
        events.put_targets(Rule="reports", Targets=[{"Id": "1", "Arn": arn}])
        cls.bin = _tools(cls.aws.folder / "bin")

    @classmethod
    def tearDownClass(cls):
        cls.aws.stop()
        cls.aws.forget()

    def check(self, template: str, *, digest: str | None = None, url: str | None = None, path: str = "",
              models: str = "m1, m2") -> tuple[int, dict]:
        """Runs the script on a template; gives its exit status and the detail of its one report."""
        body = template.encode()
        self.s3.put_object(Bucket="releases", Key="t.yaml", Body=body)
        environment = {
            "PATH": f"{path}{self.bin}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HEADGATE_RELEASE": "2.4.0",
            "HEADGATE_ATTEMPT": "3",
            "HEADGATE_TEMPLATE_URL": url or f"{self.aws.url}/releases/t.yaml",
            "HEADGATE_TEMPLATE_SHA256": digest or hashlib.sha256(body).hexdigest(),
            "HEADGATE_MODELS": models,
            "CODEBUILD_BUILD_ID": "check:1",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.aws.url,
            "AWS_ACCESS_KEY_ID": ACCOUNT,
            "AWS_SECRET_ACCESS_KEY": "local",
        }
        ran = subprocess.run(["bash", str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
        received = self.sqs.receive_message(QueueUrl=self.queue, WaitTimeSeconds=5, MaxNumberOfMessages=10)
        messages = received.get("Messages", [])
        self.assertEqual(len(messages), 1, f"one report, whatever happens; the script said {ran.stdout}{ran.stderr}")
        self.sqs.delete_message(QueueUrl=self.queue, ReceiptHandle=messages[0]["ReceiptHandle"])
        detail = json.loads(messages[0]["Body"])["detail"]
        self.assertEqual((detail["release"], detail["attempt"], detail["build_id"]), ("2.4.0", 3, "check:1"))
        return ran.returncode, detail

    def images(self, literal: str = f"{IMAGE}:1", worker: str = f"{IMAGE}:1") -> str:
        """The template with these images."""
        return TEMPLATE.replace("IMAGE", literal).replace("WORKER", worker)

    def test_a_good_release_passes_with_its_digest_and_models(self):
        template = self.images()
        code, detail = self.check(template)
        self.assertEqual((code, detail["verdict"], detail["reason"]), (0, "passed", None))
        self.assertEqual(detail["template_sha256"], hashlib.sha256(template.encode()).hexdigest())
        self.assertEqual([(m["id"], m["ok"]) for m in detail["models"]], [("m1", True), ("m2", True)])

    def test_another_digest_fails_and_is_named(self):
        code, detail = self.check(self.images(), digest="a" * 64)
        self.assertEqual((code, detail["verdict"]), (1, "failed"))
        self.assertIn("a" * 64, detail["reason"])
        self.assertTrue(all(not m["ok"] for m in detail["models"]))

    def test_a_template_that_is_not_there_fails(self):
        code, detail = self.check(self.images(), url=f"{self.aws.url}/releases/none.yaml")
        self.assertEqual((code, detail["verdict"], detail["template_sha256"]), (1, "failed", None))
        self.assertIn("could not be fetched", detail["reason"])

    def test_a_template_that_cloudformation_does_not_accept_fails(self):
        code, detail = self.check("this is: no template\n")
        self.assertEqual((code, detail["verdict"]), (1, "failed"))
        self.assertIn("does not accept", detail["reason"])

    def test_an_image_that_is_not_there_fails_and_is_named(self):
        for template, name in [(self.images(f"{IMAGE}:2"), "shop:2"), (self.images(worker=f"{IMAGE}:7"), "shop:7")]:
            with self.subTest(name):
                code, detail = self.check(template)
                self.assertEqual((code, detail["verdict"]), (1, "failed"))
                self.assertIn(name, detail["reason"])

    def test_an_image_that_can_not_be_told_before_the_update_fails(self):
        code, detail = self.check(self.images('!ImportValue "image"'))
        self.assertEqual((code, detail["verdict"]), (1, "failed"))
        self.assertIn("can not be resolved", detail["reason"])

    def test_a_crash_reports_as_well(self):
        # sha256sum dies: nobody wrote a refusal for that.
        broken = self.aws.folder / "broken"
        broken.mkdir(exist_ok=True)
        (broken / "sha256sum").write_text("#!/bin/sh\nkill -9 $$\n")
        (broken / "sha256sum").chmod(0o755)
        code, detail = self.check(self.images(), path=f"{broken}:")
        self.assertNotEqual(code, 0)
        self.assertEqual(detail["verdict"], "failed")
        self.assertIn("compare the digest", detail["reason"])

    def test_text_from_outside_can_not_break_the_report(self):
        code, detail = self.check(self.images(), models='m"1\\, $(touch /tmp/x), `id`')
        self.assertEqual((code, detail["verdict"]), (0, "passed"))
        self.assertEqual([m["id"] for m in detail["models"]], ['m"1\\', "$(touch /tmp/x)", "`id`"])


class Template(unittest.TestCase):
    """What the real template says of it."""

    def test_the_project_runs_the_script_word_for_word(self):
        from samtranslator.yaml_helper import yaml_parse

        project = expand.read()["Resources"]["ReleaseCheck"]["Properties"]
        commands = yaml_parse(project["Source"]["BuildSpec"])["phases"]["build"]["commands"]
        self.assertEqual([c.rstrip("\n") for c in commands], [SCRIPT.read_text().rstrip("\n")])
        self.assertLessEqual(project["TimeoutInMinutes"], 30)


if __name__ == "__main__":
    unittest.main()
