#!/usr/bin/env bash
# The release check: fetches a release's template, compares its digest, lets CloudFormation validate it, resolves
# every container image it names to a digest, and reports the verdict on the event bus, also when it crashes.
#
# Input (environment): HEADGATE_RELEASE, HEADGATE_ATTEMPT, HEADGATE_TEMPLATE_URL, HEADGATE_TEMPLATE_SHA256,
# HEADGATE_MODELS (comma list of the models the release names, may be empty), CODEBUILD_BUILD_ID,
# HEADGATE_BUS (default: the account's default bus), AWS_REGION.
# Needs: bash, curl, python3 and the AWS command line. Exit status: 0 passed and reported, 1 failed and reported,
# 2 the report itself could not be sent.
# template.yaml holds this file as its inline buildspec; a test keeps the two the same.
set -euo pipefail

step="start"
reported=no
digest=""
work=$(mktemp -d)

# report VERDICT REASON: one event, JSON built by a JSON library so that no text can break it.
report() {
  reported=yes
  VERDICT=$1 REASON=$2 DIGEST=$digest python3 - >"$work/entry.json" <<'PY'
import json, os
e = os.environ
detail = {
    "release": e["HEADGATE_RELEASE"],
    "attempt": int(e["HEADGATE_ATTEMPT"]),
    "build_id": e.get("CODEBUILD_BUILD_ID", ""),
    "verdict": e["VERDICT"],
    "reason": e["REASON"][:500] or None,
    "template_sha256": e["DIGEST"] or None,
    "models": [{"id": m.strip(), "ok": e["VERDICT"] == "passed", "reason": None}
               for m in e.get("HEADGATE_MODELS", "").split(",") if m.strip()],
}
print(json.dumps([{
    "Source": "headgate.release-check",
    "DetailType": "Release Check Reported",
    "Detail": json.dumps(detail),
    "EventBusName": e.get("HEADGATE_BUS") or "default",
}]))
PY
  # put-events answers 200 also when an entry was refused: the count says so.
  local refused
  refused=$(aws events put-events --entries "file://$work/entry.json" --query FailedEntryCount --output text)
  if [ "$refused" != "0" ]; then
    echo "the event bus refused the report" >&2
    exit 2
  fi
  echo "reported: $1 ${2:-}"
}

refuse() {
  report failed "$1"
  exit 1
}

# A crash reports as well: whatever ends the script before its verdict is a failed check with the step's name.
on_exit() {
  local status=$?
  if [ "$reported" = no ]; then
    report failed "the release check stopped in step '$step' (exit status $status)" || true
  fi
  rm -rf "$work"
  exit "$status"
}
trap on_exit EXIT
trap 'exit 143' TERM INT

fetch_template() {
  local url=$HEADGATE_TEMPLATE_URL bucket key rest
  case $url in
    https://*.s3.*.amazonaws.com/* | https://*.s3.amazonaws.com/*)
      # A template in S3 may be private: read it as this build's role.
      rest=${url#https://}
      bucket=${rest%%.s3.*}
      key=${rest#*/}
      aws s3api get-object --bucket "$bucket" --key "${key%%\?*}" "$work/template" >/dev/null
      ;;
    *) curl --fail --silent --show-error --location --max-time 60 --output "$work/template" "$url" ;;
  esac
}

# The images a template names: literal values of Image, ImageUri and ImageIdentifier, with !Sub's pseudo parameters
# filled in and a !Ref followed to the parameter's default. One per line; one that can not be told as `? text`.
list_images() {
  ACCOUNT=$1 python3 - "$work/template" <<'PY'
import os, re, sys
text = open(sys.argv[1], encoding="utf-8").read()
region, account = os.environ.get("AWS_REGION", ""), os.environ["ACCOUNT"]
defaults, name = {}, None
block = re.search(r'^(["\s]*)Parameters["\s]*:(.*?)(?=^\S|\Z)', text, re.M | re.S)
for line in (block.group(2).splitlines() if block else []):
    head = re.match(r'^\s*"?([A-Za-z0-9]+)"?\s*:\s*\{?\s*$', line)
    value = re.match(r'^\s*"?Default"?\s*:\s*["\']?([^"\',]+)', line)
    if head:
        name = head.group(1)
    elif value and name:
        defaults[name] = value.group(1).strip()
found = set()
for m in re.finditer(r'"?\b(?:Image|ImageUri|ImageIdentifier)"?\s*:\s*(.+)', text):
    value = m.group(1).split(" #")[0].strip().rstrip(",")
    ref = re.match(r'(?:!Ref\s+|\{\s*"?Ref"?\s*:\s*)"?([A-Za-z0-9]+)', value)
    sub = re.match(r'(?:!Sub\s+|\{\s*"?Fn::Sub"?\s*:\s*)["\']?((?:\$\{[^}]*\}|[^"\'}$])*)', value)
    if ref:
        image = defaults.get(ref.group(1), "")
    elif sub:
        image = sub.group(1)
    else:
        image = value.strip("\"'")
    for key, v in [("AWS::AccountId", account), ("AWS::Region", region), ("AWS::URLSuffix", "amazonaws.com"), *defaults.items()]:
        image = image.replace("${%s}" % key, v)
    image = image.strip()
    ok = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", image)
    found.add(image if ok else "? " + value)
print("\n".join(sorted(found)))
PY
}

# The digest of an image in any registry that speaks the distribution API, with an anonymous token where asked.
registry_digest() {
  local host=$1 repository=$2 reference=$3 url header answer realm service token=""
  url="https://$host/v2/$repository/manifests/$reference"
  header='Accept: application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json'
  answer=$(curl --silent --head --max-time 30 -H "$header" "$url" | tr -d '\r')
  if printf '%s' "$answer" | head -n 1 | grep -q ' 401'; then
    realm=$(printf '%s' "$answer" | sed -n 's/^[Ww][Ww][Ww]-[Aa]uthenticate:.*realm="\([^"]*\)".*/\1/p')
    service=$(printf '%s' "$answer" | sed -n 's/^[Ww][Ww][Ww]-[Aa]uthenticate:.*service="\([^"]*\)".*/\1/p')
    token=$(curl --silent --max-time 30 "$realm?service=$service&scope=repository:$repository:pull" |
      python3 -c 'import json,sys; d=json.load(sys.stdin); print(d.get("token") or d.get("access_token") or "")')
    answer=$(curl --silent --head --max-time 30 -H "$header" -H "Authorization: Bearer $token" "$url" | tr -d '\r')
  fi
  printf '%s' "$answer" | sed -n 's/^[Dd]ocker-[Cc]ontent-[Dd]igest: *\(sha256:[0-9a-f]*\).*/\1/p'
}

resolve_image() {
  local image=$1 host path reference kind
  path=$image
  reference=latest
  case $image in
    *@sha256:*) path=${image%%@*} reference=${image#*@} ;;
    *:*)
      # A colon after the last slash is a tag; before it, a port.
      case ${image##*/} in *:*) path=${image%:*} reference=${image##*:} ;; esac
      ;;
  esac
  host=${path%%/*}
  case $host in
    *.dkr.ecr.*)
      kind=imageTag
      case $reference in sha256:*) kind=imageDigest ;; esac
      aws ecr describe-images --registry-id "${host%%.*}" --repository-name "${path#*/}" \
        --image-ids "$kind=$reference" --query 'imageDetails[0].imageDigest' --output text
      ;;
    *.*) registry_digest "$host" "${path#*/}" "$reference" ;;
    *)
      case $path in */*) ;; *) path=library/$path ;; esac
      registry_digest registry-1.docker.io "$path" "$reference"
      ;;
  esac
}

step="fetch the template"
fetch_template || refuse "the template could not be fetched from the address in the release list"

step="compare the digest"
digest=$(sha256sum "$work/template" | cut -d' ' -f1)
if [ "$digest" != "$(printf '%s' "$HEADGATE_TEMPLATE_SHA256" | tr 'A-F' 'a-f')" ]; then
  refuse "template digest differs: the release list names $HEADGATE_TEMPLATE_SHA256, the template has $digest"
fi

step="validate the template"
if ! aws cloudformation validate-template --template-url "$HEADGATE_TEMPLATE_URL" >/dev/null 2>"$work/error"; then
  refuse "CloudFormation does not accept the template: $(tail -n 1 "$work/error")"
fi

step="resolve the images"
account=$(aws sts get-caller-identity --query Account --output text)
list_images "$account" >"$work/images"
while IFS= read -r image; do
  case $image in
    "") continue ;;
    "? "*) refuse "an image is named in a way that can not be resolved before the update: ${image#? }" ;;
  esac
  found=$(resolve_image "$image" 2>"$work/error" || true)
  case $found in
    sha256:*) echo "image $image is $found" ;;
    *) refuse "the image $image can not be found in its registry" ;;
  esac
done <"$work/images"

step="report"
report passed ""
