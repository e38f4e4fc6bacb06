"""`aws` and `curl` for the release check's script on the local stack: the few calls it makes, with boto3.

The script is the one that runs in CodeBuild; there the build image brings the real tools.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request

import boto3
import jmespath
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError


def aws(arguments: list[str]) -> int:
    """One call: `aws SERVICE OPERATION [--option value]... [FILE]`."""
    service, operation, *rest = arguments
    parser = argparse.ArgumentParser()
    for name in ("entries", "query", "output", "bucket", "key", "template-url", "registry-id", "repository-name", "image-ids"):
        parser.add_argument(f"--{name}")
    parser.add_argument("outfile", nargs="?")
    o = parser.parse_args(rest)
    client = boto3.client({"s3api": "s3"}.get(service, service), config=Config(s3={"addressing_style": "path"}, proxies={}))
    try:
        match service, operation:
            case "events", "put-events":
                with open(o.entries.removeprefix("file://"), encoding="utf-8") as file:
                    answer = client.put_events(Entries=json.load(file))
            case "cloudformation", "validate-template":
                answer = client.validate_template(TemplateURL=o.template_url)
            case "sts", "get-caller-identity":
                answer = client.get_caller_identity()
            case "s3api", "get-object":
                answer = client.get_object(Bucket=o.bucket, Key=o.key)
                with open(o.outfile, "wb") as file:
                    file.write(answer["Body"].read())
                return 0
            case "ecr", "describe-images":
                kind, value = o.image_ids.split("=", 1)
                answer = client.describe_images(
                    registryId=o.registry_id, repositoryName=o.repository_name, imageIds=[{kind: value}]
                )
            case _:
                print(f"aws: {service} {operation} is not among the calls of the release check", file=sys.stderr)
                return 252
    except (ClientError, BotoCoreError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 254
    if o.query:
        print(jmespath.search(o.query, answer))
    return 0


def curl(arguments: list[str]) -> int:
    """`curl --output FILE URL`, for a machine without curl."""
    output = arguments[arguments.index("--output") + 1] if "--output" in arguments else "/dev/stdout"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(arguments[-1], timeout=60) as answer, open(output, "wb") as file:
            file.write(answer.read())
    except (urllib.error.URLError, OSError) as error:
        print(f"curl: {error}", file=sys.stderr)
        return 22
    return 0


if __name__ == "__main__":
    sys.exit({"aws": aws, "curl": curl}[sys.argv[1]](sys.argv[2:]))
