"""The real `template.yaml`, made into what ministack can run.

Nothing is rewritten by hand: SAM's own transform does the work. What differs from a real account is listed in
`LOCAL_ENVIRONMENT` and in `_for_ministack`, and nowhere else.
"""

import hashlib
import io
import json
import zipfile
from pathlib import Path

from local.ministack import REGION, Ministack
from local.prepare import ROOT
from local.say import Stop

TEMPLATE = ROOT / "template.yaml"

# None removes the variable.
LOCAL_ENVIRONMENT = {
    # There is nobody to check a token here; no deployed template sets this.
    "HEADGATE_AUTH": "local",
    # A path of Amazon Linux; the local AWS speaks plain HTTP.
    "SSL_CERT_FILE": None,
}


def read() -> dict:
    """The template as written, intrinsic functions in their long form."""
    from samtranslator.yaml_helper import yaml_parse

    return yaml_parse(TEMPLATE.read_text())


def binaries() -> dict[str, str]:
    """Logical id of each function -> name of its package and binary."""
    functions = {}
    for name, resource in read()["Resources"].items():
        if resource["Type"] == "AWS::Serverless::Function":
            functions[name] = resource["Metadata"]["BuildProperties"]["Binary"]
    return functions


def upload_code(aws: Ministack, bucket: str, folder: Path) -> dict[str, dict]:
    """Zips each binary as `bootstrap` and uploads it; gives each function's CodeUri."""
    s3 = aws.client("s3")
    code = {}
    for function, binary in binaries().items():
        content = (folder / binary).read_bytes()
        # The name carries the content, so that changed code is a changed template.
        key = f"code/{binary}-{hashlib.sha256(content).hexdigest()[:16]}.zip"
        entry = zipfile.ZipInfo("bootstrap")
        entry.external_attr = 0o755 << 16
        packed = io.BytesIO()
        # Stored: the file stays on this machine, packing it would only take time.
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(entry, content)
        s3.put_object(Bucket=bucket, Key=key, Body=packed.getvalue())
        code[function] = {"Bucket": bucket, "Key": key}
    return code


def expand(code: dict[str, dict], parameters: dict[str, str], endpoints: dict[str, str]) -> str:
    """The template after SAM's transform and the few local changes, as JSON.

    `endpoints` are services that ministack does not do well enough, by variable (AWS_ENDPOINT_URL_<SERVICE>).
    """
    import boto3
    from samtranslator.model.exceptions import InvalidDocumentException
    from samtranslator.parser.parser import Parser
    from samtranslator.translator.translator import Translator
    from samtranslator.yaml_helper import yaml_parse

    template = read()
    for function, where in code.items():
        template["Resources"][function]["Properties"]["CodeUri"] = where
    for resource in template["Resources"].values():
        # `sam package` would upload the workflow and put its address here.
        if resource["Type"] == "AWS::Serverless::StateMachine" and "DefinitionUri" in resource["Properties"]:
            workflow = ROOT / resource["Properties"].pop("DefinitionUri")
            resource["Properties"]["Definition"] = yaml_parse(workflow.read_text())
    session = boto3.session.Session(region_name=REGION)
    defaults = {name: p["Default"] for name, p in template["Parameters"].items() if "Default" in p}
    try:
        plain = Translator({}, Parser(), boto_session=session).translate(template, {**defaults, **parameters})
    except InvalidDocumentException as error:
        faults = "; ".join(cause.message for cause in error.causes)
        raise Stop(f"template.yaml: {faults}") from error
    return json.dumps(_for_ministack(plain, endpoints))


def _for_ministack(template: dict, endpoints: dict[str, str]) -> dict:
    for name, resource in template["Resources"].items():
        kind, properties = resource["Type"], resource.get("Properties", {})
        if kind == "AWS::Lambda::Function":
            variables = properties.setdefault("Environment", {}).setdefault("Variables", {})
            variables.update(LOCAL_ENVIRONMENT | endpoints)
            for variable in [v for v, value in variables.items() if value is None]:
                del variables[variable]
            # The binaries are built for this machine, whichever that is.
            properties.pop("Architectures", None)
        elif kind == "AWS::ApiGatewayV2::Api" and "Body" in properties:
            # ministack ignores it, and every route would be a 404.
            raise Stop(f"template.yaml: {name} has a Body: write its routes as AWS::ApiGatewayV2::Route resources.")
        elif kind == "AWS::ApiGatewayV2::Route":
            # The gateway's part of the caller check, off like the function's.
            properties["AuthorizationType"] = "NONE"
        elif kind == "AWS::DynamoDB::Table":
            # The local table goes with the local AWS.
            properties.pop("DeletionProtectionEnabled", None)
    return template
