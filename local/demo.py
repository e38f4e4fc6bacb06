"""`./run demo`: the main job, told through the HTTP API. Every answer is one line, and is checked."""

import time

from local import links, vendor
from local.codebuild import CodeBuild
from local.install import FIRST_RELEASE, INSTALL, Installation
from local.ministack import Ministack
from local.say import Stop, note, step
from local.story import PATIENCE_SECONDS, Story, line

CONSOLE = "someone in the AWS console"


def main(port: int) -> int:
    """Starts everything, tells the story, stops everything. 0 only if every answer was as expected."""
    with step("starting the local AWS"):
        aws = Ministack(port)
    with aws, CodeBuild(aws) as codebuild:
        installation = Installation(aws, codebuild)
        installation.set_up()
        tell(installation)
    note("every answer was as expected.")
    return 0


def tell(installation: Installation) -> None:
    """The story, from a quiet install at 2.3.0."""
    story = Story(installation)
    _quiet(story)
    _an_update_that_works(story, installation)
    _an_update_that_rolls_back(story, installation)
    _an_update_run_in_the_console(story, installation)
    _an_older_one_makes_room(story)
    links.tell(story, installation)


def _quiet(story: Story) -> None:
    print(f"\n# The install is at {FIRST_RELEASE}; the newest release can not be reached in one step.")
    story.says("GET", "/version", http=200, status__state="idle", current__release=FIRST_RELEASE,
               latest__release="2.6.1", update=None, blockers=lambda b: b[0]["code"] == "release_too_far")
    story.says("POST", "/updates", {"release": "2.6.1"}, http=409, code="release_too_far")
    story.says("POST", "/updates", {"release": "9.9.9"}, http=404, code="release_unknown")


def _an_update_that_works(story: Story, installation: Installation) -> None:
    print("\n# 2.4.0: begin, read the plan, give the OK.")
    # Begin also starts the release check; this one is held back, to be seen running.
    installation.codebuild.hold("2.4.0")
    begun = story.says("POST", "/updates", {"release": "2.4.0"}, http=201, state="preparing",
                       status__state="preparing", from_release=FIRST_RELEASE, to_release="2.4.0")
    here = f"/updates/{begun['id']}"
    story.until("/version", status__state="prepared", update__id=begun["id"],
                update__summary=lambda s: s["add"] == 3 and s["modify"] == 2 and s["remove"] == 0)
    story.says("GET", "/model-check?release=2.4.0", http=200, state="pending", status__progress__step="BUILD")
    story.says("POST", f"{here}/apply", http=409, code="model_check_pending")
    installation.codebuild.let_go("2.4.0")
    story.until("/model-check?release=2.4.0", state="passed")
    story.says("GET", "/preflight?release=2.4.0", http=200, ready=True, blockers=[])
    story.says("POST", f"{here}/apply", http=202, state="applying", model_check__state="passed")
    # Everything but the application itself: honest progress is not yet at its end.
    story.until("/version", status__state="applying", status__progress__step="updating",
                status__progress=lambda p: 3 <= p["done"] < p["total"], current__stack_status="UPDATE_IN_PROGRESS")
    story.says("POST", "/updates", {"release": "2.4.0"}, http=409, code="update_applying")
    _signalled(installation, "2.4.0")
    story.until("/version", status__state="updated", current__release="2.4.0")


def _an_update_that_rolls_back(story: Story, installation: Installation) -> None:
    print("\n# 2.5.0: its application does not start, and CloudFormation rolls back.")
    # The host of its release check is lost: the check is stalled with its reason, and holds the update.
    installation.codebuild.hold("2.5.0")
    begun = story.says("POST", "/updates", {"release": "2.5.0"}, http=201, state="preparing")
    story.until("/version", status__state="prepared", update__id=begun["id"])
    installation.codebuild.kill("2.5.0")
    story.until("/model-check?release=2.5.0", state="stalled", status__reason__code="build_ended")
    story.says("POST", f"/updates/{begun['id']}/apply", http=409, code="model_check_stalled")
    story.says("POST", "/model-check", {"release": "2.5.0"}, http=202, state="pending", attempt=2)
    story.until("/model-check?release=2.5.0", state="passed")
    story.says("POST", f"/updates/{begun['id']}/apply", http=202, state="applying")
    story.until("/version", status__state="applying", status__progress__step="updating")
    _signalled(installation, "2.5.0")
    story.until("/version", status__state="rolled_back", current__release="2.4.0",
                status__reason=lambda r: vendor.BROKEN_REASON in r["text"])


def _an_update_run_in_the_console(story: Story, installation: Installation) -> None:
    print("\n# 2.5.1: somebody executes the change set in the AWS console, behind Headgate's back.")
    begun = story.says("POST", "/updates", {"release": "2.5.1"}, http=201, state="preparing")
    ready = story.until("/version", status__state="prepared", update__id=begun["id"])
    installation.cloudformation.execute_change_set(ChangeSetName=ready["update"]["change_set"]["arn"])
    line("(...)", "AWS console", "Execute change set")
    # CloudFormation's own event brings this about on a real account; the local AWS emits none.
    story.event("stack-status-change", state="applying", wrote=True)
    story.until("/version", status__state="applying", update__applied_by=CONSOLE)
    _signalled(installation, "2.5.1")
    story.until("/version", status__state="updated", current__release="2.5.1", update__applied_by=CONSOLE)


def _an_older_one_makes_room(story: Story) -> None:
    print("\n# 2.6.0 is prepared and waits; then 2.6.1 comes out.")
    older = story.says("POST", "/updates", {"release": "2.6.0"}, http=201, state="preparing")
    story.until("/version", status__state="prepared", update__id=older["id"],
                update__summary=lambda s: s["data_loss"] == ["Search"])
    newer = story.says("POST", "/updates", {"release": "2.6.1"}, http=201)
    story.until("/version", status__state="prepared", update__id=newer["id"])
    story.says("GET", f"/updates/{older['id']}", http=200, state="superseded", superseded_by=newer["id"])
    story.says("POST", f"/updates/{older['id']}/apply", http=409, code="not_pending", superseded_by=newer["id"])
    story.event("tick-scheduler", state="prepared", wrote=False)
    story.says("POST", f"/updates/{newer['id']}/discard", http=200, state="discarded")
    story.says("GET", "/updates", http=200, updates=lambda us: [(u["to_release"], u["state"]) for u in us] == [
        ("2.6.1", "discarded"), ("2.6.0", "superseded"), ("2.5.1", "updated"), ("2.5.0", "rolled_back"),
        ("2.4.0", "updated")])
    story.says("GET", "/version", http=200, current__release="2.5.1", blockers=[])


def _signalled(installation: Installation, release: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not vendor.signal(installation, release):
        if time.monotonic() > deadline:
            raise Stop(f"CloudFormation never waited for the application of {release}")
        time.sleep(0.05)
    line("(...)", INSTALL, f"the application of {release} says how it is")
