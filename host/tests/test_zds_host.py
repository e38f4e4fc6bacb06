"""The host side, run for real: zds-host, the template unit, Caddy and the SSM document.

Every case runs twice where the machine allows it: over real systemd units, and over the recorded runner. What a machine lacks is
said in the reason of the skip.
"""
import json
import os
import re
import socket
import ssl
import stat
import threading
import unittest

from support import HOST, SUFFIX, Client, SsmError, agent

A_DID = "did:web:a-com" + SUFFIX


class Cases:
    """Mixed into one class per runner."""

    mode = ""
    # Of the points at which a command is killed, every how many-th is tried. Both runners need not try them all.
    every = 1

    @classmethod
    def setUpClass(cls):
        started = agent(cls.mode)
        if isinstance(started, str):
            raise unittest.SkipTest(started)
        cls.process, info = started
        cls.addClassCleanup(cls.end)
        cls.c = Client(info)
        if cls.mode == "systemd":
            RecordedRunner.every = 5  # uneven, so that both ways to go on are still tried

    @classmethod
    def end(cls):
        cls.process.stdin.close()
        cls.process.wait(60)
        cls.process.stdout.close()
        cls.process.stderr.close()

    def setUp(self):
        self.c.control("reset")

    # ------------------------------------------------------------------ what up and down promise

    def assert_up(self, generation=1, slug="a-com"):
        self.assertEqual(self.c.active(slug)[0], "active")
        self.assertEqual(self.c.did_through_caddy(slug + SUFFIX), f"did:web:{slug}{SUFFIX}")
        self.assertEqual(self.c.did_through_caddy("alice." + slug.replace("-", ".")), f"did:web:{slug}{SUFFIX}")
        self.assertEqual(self.c.text("var/lib/zds/fence", slug), f"{generation} up\n")
        self.assert_nothing_half_done()

    def assert_down(self, generation, slug="a-com", port=None):
        self.assertEqual(self.c.active(slug)[0], "inactive")
        self.assertEqual(self.c.did_through_caddy(slug + SUFFIX), 421)
        self.assertFalse(self.c.listens(port or self.c.low))
        self.assertFalse(os.path.exists(self.c.map(slug)))
        self.assertFalse(os.path.exists(self.c.path("var/lib/zds/env", slug + ".env")))
        self.assertEqual(self.c.text("var/lib/zds/fence", slug), f"{generation} down\n")
        self.assert_nothing_half_done()

    def assert_nothing_half_done(self):
        self.assertFalse(os.path.exists(self.c.path("var/lib/zds/routes-pending")))
        self.assertFalse(os.path.exists(self.c.path("etc/caddy/.zds-stage")))
        left = [f for d in ("env", "secrets", "fence") for f in os.listdir(self.c.path("var/lib/zds", d)) if ".tmp" in f]
        self.assertEqual(left, [])

    def test_up_starts_routes_and_proves_the_instance(self):
        got = self.c.run("up")
        self.assertEqual((got.status, got["result"], got["change"], got["did"], got["port"]), (0, "ok", "started", A_DID, self.c.low), got)
        self.assertEqual((got["op"], got["slug"], got["generation"]), ("up", "a-com", 1))
        self.assert_up()
        self.assertEqual(self.c.control("systemctl", args=["is-enabled", "zds@a-com.service"])["stdout"], "enabled\n")

    def test_t26_duplicate_up_is_a_no_op(self):
        self.c.run("up")
        pid = self.c.active()
        reloads, starts = len(self.c.calls("caddy reload")), len(self.c.calls("systemctl start"))
        got = self.c.run("up")
        self.assertEqual((got.status, got["change"], got["reloaded"]), (0, "already", False), got)
        self.assertEqual(self.c.active(), pid)
        self.assertEqual((len(self.c.calls("caddy reload")), len(self.c.calls("systemctl start"))), (reloads, starts))

    def test_up_of_a_newer_generation_verifies_without_a_restart(self):
        self.c.run("up")
        got = self.c.run("up", generation=3)
        self.assertEqual((got.status, got["change"]), (0, "already"), got)
        self.assertEqual(self.c.starts(), 1)
        self.assert_up(generation=3)

    def test_down_stops_and_keeps_data_and_secrets(self):
        self.c.run("up")
        secrets = self.c.text("var/lib/zds/secrets/a-com.env")
        got = self.c.run("down", generation=2)
        self.assertEqual((got.status, got["result"], got["change"]), (0, "ok", "stopped"), got)
        self.assert_down(2)
        again = self.c.run("down", generation=2)
        self.assertEqual((again.status, again["change"], again["reloaded"]), (0, "already", False), again)
        self.assertEqual(self.c.run("up", generation=3)["change"], "started")
        self.assertEqual(self.c.text("var/lib/zds/secrets/a-com.env"), secrets)
        self.assertEqual(self.c.starts(), 2)  # counted in the data directory: it was kept
        self.assert_up(generation=3)

    def test_down_of_what_never_was_is_fine(self):
        got = self.c.run("down")
        self.assertEqual((got.status, got["change"]), (0, "already"), got)
        self.assertEqual(self.c.calls("caddy reload"), [])

    # ------------------------------------------------------------------ fence

    def test_t24_stale_up_is_fenced(self):
        self.c.run("up")
        self.c.run("down", generation=2)
        for generation in (1, 2):
            got = self.c.run("up", generation=generation)
            self.assertEqual((got.status, got["result"], got["code"]), (4, "fenced", "fenced"), got)
            self.assertEqual((got["host_generation"], got["host_op"]), (2, "down"))
        self.assert_down(2)

    def test_t25_stale_down_is_fenced(self):
        self.c.run("up", generation=3)
        got = self.c.run("down", generation=2)
        self.assertEqual((got.status, got["result"], got["host_generation"]), (4, "fenced", 3), got)
        self.assert_up(generation=3)

    def test_down_at_the_generation_of_the_up_is_accepted(self):
        self.c.run("up", generation=5)
        self.assertEqual(self.c.run("down", generation=5).status, 0)
        self.assert_down(5)

    def test_generations_compare_as_numbers_of_any_length(self):
        big = 9999999999999999999
        self.assertEqual(self.c.run("down", generation=9).status, 0)
        self.assertEqual(self.c.run("down", generation=10).status, 0)
        self.assertEqual(self.c.run("down", generation=9).status, 4)
        self.assertEqual(self.c.run("down", generation=big).status, 0)
        got = self.c.run("down", generation=big - 1)
        self.assertEqual((got.status, got["host_generation"]), (4, big))

    def test_a_damaged_fence_stops_everything(self):
        self.c.run("up")
        with open(self.c.path("var/lib/zds/fence/a-com"), "w", encoding="utf-8") as f:
            f.write("seven up\n")
        got = self.c.run("down", generation=9)
        self.assertEqual((got.status, got["code"]), (3, "fence_damaged"), got)
        self.assertEqual(self.c.active()[0], "active")

    # ------------------------------------------------------------------ failures are told apart, and at once

    def test_t05_a_unit_that_dies_is_a_crash_loop(self):
        self.c.control("faults", slug="a-com", faults=["exit"])
        got = self.c.run("up")
        self.assertEqual((got.status, got["result"], got["code"]), (3, "failed", "crash_loop"), got)
        self.assertFalse(os.path.exists(self.c.map("a-com")))
        self.assertEqual(self.c.calls("caddy validate"), [])
        self.assertEqual(self.c.run("down", generation=2).status, 0)
        self.assert_down(2)
        self.c.control("faults", slug="a-com", faults=[])
        self.assertEqual(self.c.run("up", generation=3)["change"], "started")
        self.assert_up(generation=3)

    def test_t33_another_process_on_the_port_is_port_taken(self):
        self.c.run("up", slug="b-com")
        got = self.c.run("up", slug="a-com")
        self.assertEqual((got.status, got["code"]), (3, "port_taken"), got)
        self.assert_up(slug="b-com")
        self.c.run("down", slug="a-com", generation=2)
        with socket.create_server(("127.0.0.1", self.c.low + 40)):
            got = self.c.run("up", slug="a-com", generation=3, port=self.c.low + 40)
        self.assertEqual((got.status, got["code"]), (3, "port_taken"), got)

    def test_t33_a_wrong_did_never_passes(self):
        self.c.control("faults", slug="a-com", faults=["wrong_did"])
        got = self.c.run("up")
        self.assertEqual((got.status, got["code"]), (3, "did_mismatch"), got)
        self.assertIn("did:web:somebody.else", got["message"])
        self.assertFalse(os.path.exists(self.c.map("a-com")))

    def test_the_right_did_without_health_never_passes(self):
        for fault in ("unhealthy", "mute"):
            self.c.control("reset")
            self.c.control("faults", slug="a-com", faults=[fault])
            got = self.c.run("up", env={"ZDS_HEALTH_SECONDS": 1})
            self.assertEqual((got.status, got["code"]), (3, "health_timeout"), got)
            self.assertFalse(os.path.exists(self.c.map("a-com")))

    def test_missing_handle_domains_are_a_failure_of_a_fresh_start(self):
        self.c.control("faults", slug="a-com", faults=["no_handles"])
        got = self.c.run("up")
        self.assertEqual((got.status, got["code"]), (3, "handle_domains_mismatch"), got)

    def test_a_running_instance_is_never_restarted_for_a_changed_setting(self):
        self.c.run("up")
        got = self.c.run("up", generation=2, handles=".a.com,.b.org")
        self.assertEqual((got.status, got["drift"]), (0, True), got)
        self.assertEqual(self.c.starts(), 1)

    # ------------------------------------------------------------------ routes

    def test_t35_map_entries_are_escaped_and_anchored(self):
        self.c.run("up")
        self.assertEqual(self.c.text("etc/caddy/maps/a-com.map").splitlines(), [
            rf"~(?i)^a-com\.pds1\.example\.test$ 127.0.0.1:{self.c.low} origin",
            rf"~(?i)^[a-z0-9-]+\.a\.com$ 127.0.0.1:{self.c.low} handle"])
        self.assertEqual(self.c.did_through_caddy("U.A.COM"), A_DID)
        for stranger in ("xa.com", "a.com", "a.com.evil.test", "aXcom", "u.aXcom", "u.v.a.com", "a-comXpds1.example.test", "x.a-com" + SUFFIX):
            self.assertEqual(self.c.did_through_caddy(stranger), 421, stranger)

    def test_t34_an_invalid_map_is_never_loaded(self):
        self.c.run("up")
        with open(self.c.map("broken-com"), "w", encoding="utf-8") as f:
            f.write("~(?i)^( {\n")
        before = self.c.calls("caddy reload")
        got = self.c.run("up", slug="b-com", port=self.c.low + 1)
        self.assertEqual((got.status, got["code"]), (3, "caddy_invalid"), got)
        self.assertEqual(self.c.calls("caddy reload"), before)
        self.assertFalse(os.path.exists(self.c.map("b-com")))
        self.assertEqual(self.c.did_through_caddy("a-com" + SUFFIX), A_DID)
        # The rollback of b needs no reload, so the broken neighbour does not hold it up.
        self.assertEqual(self.c.run("down", slug="b-com", generation=2).status, 0)
        # One with a route is stopped all the same, and says that its route could not be taken away yet.
        got = self.c.run("down", generation=2)
        self.assertEqual((got.status, got["code"]), (3, "caddy_invalid"), got)
        self.assertEqual(self.c.active()[0], "inactive")
        os.remove(self.c.map("broken-com"))
        self.assertEqual(self.c.run("down", generation=2).status, 0)
        self.assert_down(2)

    def test_two_instances_never_share_a_name(self):
        self.c.run("up")
        got = self.c.run("up", slug="b-com", port=self.c.low + 1, handles=".a.com")
        self.assertEqual((got.status, got["code"]), (3, "name_taken"), got)
        self.assertEqual(self.c.did_through_caddy("u.a.com"), A_DID)

    def test_c18_a_missing_route_is_added_without_a_restart(self):
        self.c.run("up")
        pid = self.c.active()
        os.remove(self.c.map("a-com"))
        got = self.c.run("up")
        self.assertEqual((got.status, got["change"], got["reloaded"]), (0, "repaired", True), got)
        self.assertEqual(self.c.active(), pid)
        self.assert_up()

    def test_a_caddy_that_forgot_the_routes_is_loaded_again(self):
        self.c.run("up")
        kept = self.c.text("etc/caddy/maps/a-com.map")
        os.remove(self.c.map("a-com"))
        self.c.control("caddy", state="stopped")
        self.c.control("caddy", state="running")  # started without the file
        with open(self.c.map("a-com"), "w", encoding="utf-8") as f:
            f.write(kept)
        got = self.c.run("up")
        self.assertEqual((got.status, got["change"], got["reloaded"]), (0, "repaired", True), got)
        self.assert_up()

    def test_without_caddy_up_fails_and_the_map_is_taken_back(self):
        self.c.control("caddy", state="stopped")
        got = self.c.run("up")
        self.assertEqual((got.status, got["code"]), (3, "caddy_reload_failed"), got)
        self.assertFalse(os.path.exists(self.c.map("a-com")))
        self.c.control("caddy", state="running")
        self.assertEqual(self.c.run("up").status, 0)
        self.assert_up()

    def test_the_last_map_is_not_removed_while_others_are_routed(self):
        self.c.run("up")
        self.c.run("up", slug="b-com", port=self.c.low + 1)
        os.remove(self.c.map("b-com"))  # lost, not taken down
        got = self.c.run("down", generation=2)
        self.assertEqual((got.status, got["code"]), (3, "maps_empty"), got)
        self.assertIn("b-com", got["message"])
        self.assertEqual(self.c.did_through_caddy("b-com" + SUFFIX), "did:web:b-com" + SUFFIX)
        self.assertEqual(self.c.run("up", slug="b-com", port=self.c.low + 1)["change"], "repaired")
        self.assertEqual(self.c.run("down", generation=2).status, 0)
        self.assertEqual(self.c.did_through_caddy("b-com" + SUFFIX), "did:web:b-com" + SUFFIX)

    def test_o8_a_reused_instance_keeps_its_websockets(self):
        self.c.run("up")
        with socket.create_connection(("127.0.0.1", self.c.info["ports"]["probe"]), 10) as line:
            line.sendall(f"GET /xrpc/com.atproto.sync.subscribeRepos HTTP/1.1\r\nHost: a-com{SUFFIX}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                         "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())
            if self.c.info["caddy"] != "real":
                self.skipTest("real Caddy: not installed, the stand-in has no websockets")
            self.assertIn(b" 101 ", line.recv(4096))
            reloads = self.c.calls("caddy reload")
            self.c.run("up")
            self.assertEqual(self.c.calls("caddy reload"), reloads)
            line.setblocking(False)
            with self.assertRaises(BlockingIOError):  # nothing to read: still open
                line.recv(1)

    # ------------------------------------------------------------------ secrets

    def test_t36_secrets_are_private_and_never_shown(self):
        got = self.c.run("up")
        name = self.c.path("var/lib/zds/secrets/a-com.env")
        self.assertEqual(stat.S_IMODE(os.stat(name).st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(self.c.path("var/lib/zds/env/a-com.env")).st_mode), 0o600)
        values = dict(line.split("=") for line in self.c.text("var/lib/zds/secrets/a-com.env").split())
        self.assertEqual(len(set(values.values())), 3)
        everything = json.dumps(got.line) + got.stderr + "\n".join(self.c.read("calls")["calls"])
        for secret in values.values():
            self.assertRegex(secret, "^[0-9a-f]{64}$")
            self.assertNotIn(secret, everything)

    def test_damaged_secrets_are_not_made_anew(self):
        self.c.run("up")
        self.c.run("down", generation=2)
        with open(self.c.path("var/lib/zds/secrets/a-com.env"), "w", encoding="utf-8") as f:
            f.write("PDS_JWT_SECRET=\n")
        got = self.c.run("up", generation=3)
        self.assertEqual((got.status, got["code"]), (3, "secrets_damaged"), got)
        self.assertEqual(self.c.text("var/lib/zds/secrets/a-com.env"), "PDS_JWT_SECRET=\n")

    # ------------------------------------------------------------------ show

    def test_show_lists_what_is_there_in_pages(self):
        self.c.run("up", slug="b-com", port=self.c.low)
        self.c.run("up", slug="c-com", port=self.c.low + 1)
        self.c.run("down", slug="c-com", generation=2)
        with open(self.c.map("lost-map"), "w", encoding="utf-8") as f:
            f.write("\n")
        got = self.c.run("show", slug="all")
        self.assertEqual(got.status, 0, got)
        found = [i for i in got["instances"] if i["unit"] or i["env"] or i["map"]]
        self.assertEqual(found, [{"slug": "b-com", "generation": 1, "unit": True, "env": True, "map": True},
                                 {"slug": "lost-map", "generation": 0, "unit": False, "env": False, "map": True}])
        first = self.c.run("show", slug="all", env={"ZDS_SHOW_CHARACTERS": 10})
        self.assertEqual(first["instances"][0]["slug"], "b-com")
        self.assertEqual(len(first["instances"]), 1)
        second = self.c.run("show", slug=first["next"])
        self.assertIn("lost-map", [i["slug"] for i in second["instances"]])
        self.assertNotIn("b-com", [i["slug"] for i in second["instances"]])
        asked = self.c.run("show", slug="b-com")["asked"]
        self.assertEqual(asked, {"slug": "b-com", "generation": 1, "last_op": "up", "did": "did:web:b-com" + SUFFIX})

    # ------------------------------------------------------------------ at the same time

    def together(self, *calls):
        results = [None] * len(calls)

        def one(i, call):
            results[i] = call()

        threads = [threading.Thread(target=one, args=(i, call)) for i, call in enumerate(calls)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return results

    def test_concurrent_ups_of_one_slug_start_it_once(self):
        got = self.together(*[lambda: self.c.run("up")] * 3)
        self.assertEqual([g.status for g in got], [0, 0, 0], got)
        self.assertEqual(sorted(g["change"] for g in got), ["already", "already", "started"])
        self.assertEqual(self.c.starts(), 1)
        self.assert_up()

    def test_concurrent_up_and_down_end_as_the_fence_says(self):
        up, down = self.together(lambda: self.c.run("up", generation=1), lambda: self.c.run("down", generation=2))
        self.assertEqual(down.status, 0, down)
        self.assertIn(up.status, (0, 4), up)
        self.assert_down(2)

    def test_concurrent_slugs_all_get_their_routes(self):
        slugs = ["b-com", "c-com", "d-com"]
        got = self.together(*[lambda s=s, i=i: self.c.run("up", slug=s, port=self.c.low + i) for i, s in enumerate(slugs)])
        self.assertEqual([g.status for g in got], [0, 0, 0], got)
        for slug in slugs:
            self.assert_up(slug=slug)

    # ------------------------------------------------------------------ killed in the middle

    def points(self, op, generation, prepare):
        """Number of effects of the operation, counted by a run that nobody kills."""
        self.c.control("reset")
        prepare()
        whole = self.c.run(op, generation=generation, kill_before=0)
        self.assertEqual(whole.status, 0, whole)
        return whole.effects

    def test_up_killed_before_every_effect_converges(self):
        effects = self.points("up", 1, lambda: None)
        self.assertTrue({"mv", "caddy", "systemctl", "rm"} <= {e.split()[0] for e in effects}, effects)
        for n, effect in list(enumerate(effects, 1))[::self.every]:
            with self.subTest(n=n, effect=effect):
                self.c.control("reset")
                killed = self.c.run("up", kill_before=n)
                self.assertEqual((killed.status, killed.line), (-9, None), killed)
                if n % 2:
                    # The next create: the same command again, or one of a newer generation.
                    self.assertEqual(self.c.run("up", generation=1 + n % 4 // 3).status, 0)
                    self.assert_up(generation=1 + n % 4 // 3)
                    self.assertEqual(self.c.starts(), 1)
                else:
                    # The sweep: down, and the late up is refused.
                    self.assertEqual(self.c.run("down", generation=2).status, 0)
                    self.assertEqual(self.c.run("up").status, 4)
                    self.assert_down(2)

    def test_the_fence_is_saved_before_the_first_effect(self):
        effects = self.points("up", 3, lambda: None)
        first = next(n for n, e in enumerate(effects, 1) if e.startswith("systemctl"))
        self.c.control("reset")
        self.assertEqual(self.c.run("up", generation=3, kill_before=first).line, None)
        got = self.c.run("down", generation=2)  # of the owner before, late
        self.assertEqual((got.status, got["host_generation"], got["host_op"]), (4, 3, "up"), got)
        self.assertEqual(self.c.run("up", generation=2).status, 4)
        self.assertEqual(self.c.run("up", generation=3).status, 0)
        self.assert_up(generation=3)

    def test_down_killed_before_every_effect_converges(self):
        effects = self.points("down", 2, lambda: self.c.run("up"))
        for n, effect in list(enumerate(effects, 1))[::self.every]:
            with self.subTest(n=n, effect=effect):
                self.c.control("reset")
                self.c.run("up")
                killed = self.c.run("down", generation=2, kill_before=n)
                self.assertEqual((killed.status, killed.line), (-9, None), killed)
                if n % 2:
                    self.assertEqual(self.c.run("down", generation=2).status, 0)
                    self.assert_down(2)
                else:
                    # Somebody creates the domain again.
                    again = self.c.run("up", generation=3)
                    self.assertEqual(again.status, 0, again)
                    self.assert_up(generation=3)

    # ------------------------------------------------------------------ through SSM

    def ended(self, command):
        self.c.control("drain")
        return self.c.look(command)

    def test_the_document_runs_the_script(self):
        got = self.ended(self.c.send("up"))
        self.assertEqual((got["Status"], got["ResponseCode"]), ("Success", 0), got)
        self.assertEqual(json.loads(got["StandardOutputContent"])["did"], A_DID)
        listed = self.c.ssm("ListCommands", InstanceId=self.c.info["node"])["Commands"]
        self.assertEqual([c["Comment"] for c in listed], ["zds a-com g1 up"])
        show = self.ended(self.c.ssm("SendCommand", DocumentName=self.c.info["document"], InstanceIds=[self.c.info["node"]],
                                     Parameters={"Op": ["show"]})["Command"]["CommandId"])
        self.assertEqual([i["slug"] for i in json.loads(show["StandardOutputContent"])["instances"]], ["a-com"])

    def test_o6_what_a_shell_would_read_is_refused_by_ssm(self):
        for name, value in (("Slug", "a; touch pwned"), ("Slug", "a$(id)"), ("Slug", "a\nid"), ("Slug", "a-com\n"), ("Slug", "-a"), ("Slug", "a" * 41),
                            ("Op", "up;id"), ("Op", "up\n"), ("Port", "22"), ("Port", "20001\n"), ("Generation", "0"), ("Generation", "1\n"),
                            ("Origin", "a b"), ("Origin", "a-com.x\n"), ("HandleDomains", "a.com"), ("HandleDomains", ".a.com;id"), ("HandleDomains", ".a.com\n")):
            with self.assertRaises(SsmError, msg=(name, value)) as refused:
                self.c.send("up", parameters={name: value})
            self.assertEqual(refused.exception.kind, "InvalidParameters")
        with self.assertRaises(SsmError):
            self.c.send("up", parameters={"Extra": "x"})
        self.assertEqual(self.c.read("commands")["commands"], [])

    def test_a_doubled_command_is_harmless(self):
        self.c.control("rules", match={"Op": "up"}, effects={"double": True})
        command = self.c.send("up")
        self.assertEqual(self.ended(command)["Status"], "Success")
        runs = self.c.read("commands")["commands"][0]["runs"]
        self.assertEqual([json.loads(r["stdout"])["change"] for r in runs], ["started", "already"])
        self.assertEqual(self.c.starts(), 1)

    def test_reordered_commands_end_as_the_newest_says(self):
        self.c.control("rules", match={}, effects={"hold": True}, times=3)
        up1, down2, up3 = self.c.send("up"), self.c.send("down", generation=2), self.c.send("up", generation=3)
        self.assertEqual(self.c.look(up1)["Status"], "Pending")
        self.c.control("release", order=[up3, down2, up1])
        results = [json.loads(self.c.look(i)["StandardOutputContent"])["result"] for i in (up3, down2, up1)]
        self.assertEqual(results, ["ok", "fenced", "fenced"])
        self.assertEqual(self.c.look(down2)["ResponseCode"], 4)
        self.assert_up(generation=3)

    def test_a_lost_reply_leaves_a_command_that_ran(self):
        self.c.control("rules", match={"Op": "up"}, effects={"drop_reply": True})
        with self.assertRaises(OSError):
            self.c.send("up")
        self.c.control("drain")
        self.assert_up()
        self.assertEqual(len(self.c.ssm("ListCommands")["Commands"]), 1)

    def test_a_refused_connection_leaves_nothing(self):
        self.c.control("rules", match={"Op": "up"}, effects={"refuse_connection": True})
        with self.assertRaises(OSError):
            self.c.send("up")
        self.assertEqual(self.c.ssm("ListCommands")["Commands"], [])

    def test_o4_an_invocation_is_hidden_at_first(self):
        self.c.control("rules", match={}, effects={"hide": 2})
        command = self.c.send("down")
        for _ in range(2):
            with self.assertRaises(SsmError) as refused:
                self.c.look(command)
            self.assertEqual(refused.exception.kind, "InvocationDoesNotExist")
        self.assertEqual(self.ended(command)["Status"], "Success")

    def test_reported_timed_out_though_it_ran(self):
        self.c.control("rules", match={}, effects={"report_timed_out": True})
        got = self.ended(self.c.send("up"))
        self.assertEqual((got["Status"], got["StatusDetails"], got["StandardOutputContent"]), ("TimedOut", "Delivery Timed Out", ""))
        self.assert_up()

    def test_a_script_killed_by_the_node_is_failed_without_a_line(self):
        self.c.control("rules", match={}, effects={"kill_before": 9})
        got = self.ended(self.c.send("up"))
        self.assertEqual((got["Status"], got["StandardOutputContent"]), ("Failed", ""), got)
        self.assertEqual(self.ended(self.c.send("up"))["Status"], "Success")
        self.assert_up()


class RealUnits(Cases, unittest.TestCase):
    """Template units under a real systemd."""

    mode = "systemd"

    def test_the_runner_is_real(self):
        self.assertEqual(self.c.info["mode"], "systemd")
        self.c.run("up")
        pid = self.c.active()[1]
        with open(f"/proc/{self.find(pid)}/cgroup", encoding="utf-8") as f:
            self.assertIn("zds@a-com.service", f.read())

    def find(self, inner):
        """The instance's process as this namespace numbers it: the one whose innermost number is `inner` and that runs the stand-in."""
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/status", encoding="utf-8") as f:
                    numbers = re.search(r"^NSpid:\t(.*)$", f.read(), re.M)[1].split()
                with open(f"/proc/{entry}/cmdline", encoding="utf-8") as f:
                    line = f.read()
            except (FileNotFoundError, ProcessLookupError, TypeError):
                continue
            if len(numbers) > 1 and numbers[-1] == inner and "instance.py" in line:
                return entry
        self.fail("no process of the unit")

    def test_a_unit_that_dies_later_is_restarted_by_systemd(self):
        self.c.run("up")
        state, pid = self.c.active()
        os.kill(int(self.find(pid)), 9)

        def back():
            now = self.c.active()
            return now[0] == "active" and now[1] not in (pid, "0") and self.c.listens(self.c.low)

        for _ in range(400):
            if back():
                break
        self.assertTrue(back())
        self.assertEqual(self.c.run("up")["change"], "already")


class RecordedRunner(Cases, unittest.TestCase):
    """The same over the recorded runner, for machines without systemd."""

    mode = "recorded"


class TlsDoor(unittest.TestCase):
    """Certificates on demand and the ask endpoint: only the real Caddy has them."""

    @classmethod
    def setUpClass(cls):
        started = agent("recorded")
        if isinstance(started, str):
            raise unittest.SkipTest(started)
        cls.process, info = started
        cls.addClassCleanup(Cases.end.__func__, cls)
        if info["caddy"] != "real":
            raise unittest.SkipTest("real Caddy: not installed (apt-get install caddy)")
        cls.c = Client(info)
        cls.c.run("up")
        cls.c.control("accounts", slug="a-com", accounts={"alice.a.com": "did:plc:alice"})

    def ask(self, name):
        return self.c.get(self.c.info["ports"]["ask"], f"/ask?domain={name}", "127.0.0.1")[0]

    def test_ask_says_yes_for_an_origin_and_for_accounts(self):
        self.assertEqual(self.ask("a-com" + SUFFIX), 200)
        self.assertEqual(self.ask("alice.a.com"), 200)

    def test_ask_says_no_for_everything_else(self):
        for name in ("bob.a.com", "a.com", "evil.test", "x.alice.a.com", "b-com" + SUFFIX, "", "alice.a.com.evil.test"):
            self.assertEqual(self.ask(name), 404, name)
        self.assertEqual(self.c.get(self.c.info["ports"]["ask"], "/", "127.0.0.1")[0], 404)

    def test_ask_says_no_when_the_instance_is_gone(self):
        self.c.run("up", slug="gone-com", port=self.c.low + 5)
        self.c.control("accounts", slug="gone-com", accounts={"u.gone.com": "did:plc:u"})
        self.assertEqual(self.ask("u.gone.com"), 200)
        self.c.control("systemctl", args=["stop", "zds@gone-com.service"])
        self.assertEqual(self.ask("u.gone.com"), 404)
        self.c.run("down", slug="gone-com", generation=2)

    def handshake(self, name):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", self.c.info["ports"]["https"]), 20) as plain:
            with context.wrap_socket(plain, server_hostname=name) as line:
                line.sendall(f"GET /xrpc/com.atproto.server.describeServer HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
                data = b""
                while chunk := line.recv(4096):
                    data += chunk
                return data.decode()

    def test_known_names_get_a_certificate_and_the_right_instance(self):
        for name in ("a-com" + SUFFIX, "alice.a.com"):
            self.assertIn(A_DID, self.handshake(name))

    def test_unknown_names_fail_the_handshake(self):
        for name in ("evil.test", "bob.a.com", "b-com" + SUFFIX):
            with self.assertRaises((ssl.SSLError, ConnectionError), msg=name):
                self.handshake(name)


class OldAgentAndNoCaddy(unittest.TestCase):
    """An SSM agent that pastes the parameters, and the stand-in for Caddy, which must not rot where Caddy is installed."""

    def test_the_document_works_with_pasted_parameters_and_the_stand_in_routes(self):
        started = agent("recorded", "--old-agent", "--no-caddy")
        self.assertNotIsInstance(started, str)
        self.process, info = started
        self.addCleanup(Cases.end.__func__, self)
        c = Client(info)
        self.assertEqual(info["caddy"], "stand-in")
        self.assertTrue(any("Caddy" in reason for reason in info["left_out"]))
        command = c.send("up")
        c.control("drain")
        self.assertEqual(json.loads(c.look(command)["StandardOutputContent"])["change"], "started")
        self.assertEqual(c.did_through_caddy("alice.a.com"), A_DID)
        with open(c.map("broken-com"), "w", encoding="utf-8") as f:
            f.write("nonsense\n")
        self.assertEqual(c.run("up", slug="b-com", port=c.low + 1)["code"], "caddy_invalid")
        os.remove(c.map("broken-com"))
        self.assertEqual(c.run("down", generation=2).status, 0)
        self.assertEqual(c.did_through_caddy("alice.a.com"), 421)


if __name__ == "__main__":
    unittest.main()
