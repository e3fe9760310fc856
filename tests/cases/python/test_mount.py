# SPDX-License-Identifier: Apache-2.0
"""ucfs.mount, and how its mounts end."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import good
import ucfs

RUN = good.run("z1_fp32_dp2")
PROGRAM = os.environ["UCFS_PROGRAM"]


def ended(path, seconds=20):
    """Wait until the temporary directory of a mount is gone."""
    for _ in range(seconds * 20):
        if not os.path.lexists(path):
            return True
        time.sleep(0.05)
    return False


def python(text):
    """Run a Python that mounts, prints the path, and executes `text` with the mount `m`."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import os, ucfs\nm = ucfs.mount({RUN!r})\n"
         f"print(m.path, flush=True)\n{text}"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True)


@unittest.skipUnless(os.access(PROGRAM, os.X_OK) and os.access("/dev/fuse", os.R_OK | os.W_OK),
                     "there is no /dev/fuse, or no ucfs")
class Mounting(unittest.TestCase):
    def test_shows_the_source_as_long_as_it_lasts(self):
        with ucfs.mount(RUN, ranks=[2, 4], crc="zero") as path:
            self.assertLessEqual({"latest", "global_step4_dp2", "global_step4_dp4"},
                                 set(os.listdir(path)))
            file = open(path + "/latest", "rb")
        self.assertFalse(os.path.exists(path))
        with file:
            self.assertEqual(file.read(), b"global_step4")

    def test_on_a_directory_of_the_caller(self):
        with tempfile.TemporaryDirectory(suffix=", 'odd'") as d:
            mount = ucfs.mount(RUN, d)
            self.assertEqual(mount.path, d)
            self.assertIn("latest", os.listdir(d))
            mount.close()
            mount.close()
            self.assertEqual(os.listdir(d), [])

    def test_ends_after_an_exception(self):
        with self.assertRaises(KeyError):
            with ucfs.mount(RUN) as path:
                raise KeyError
        self.assertFalse(os.path.exists(path))

    def test_ends_with_its_last_reference(self):
        path = ucfs.mount(RUN).path
        self.assertFalse(os.path.exists(path))

    def test_ends_with_the_process(self):
        for text, status in [
                ("pass", 0),
                ("raise KeyError", 1),
                ("os.kill(os.getpid(), 15)", -15),
                ("f = open(m.path + '/latest'); os.kill(os.getpid(), 9)", -9),
                ("if not os.fork(): raise SystemExit\nos.wait()\nos.listdir(m.path + '/global_step4')", 0),
        ]:
            with self.subTest(text), python(text) as child:
                path = child.communicate()[0].strip()
                self.assertEqual(child.returncode, status)
                self.assertTrue(path)
                self.assertTrue(ended(path))

    def test_a_forked_process_does_not_keep_it(self):
        with python("if os.fork(): os.kill(os.getpid(), 9)\n"
                    "os.close(1)\nimport time\n"
                    "for _ in range(600): os.path.lexists(m.path) and time.sleep(0.05)\n"
                    "os._exit(0)") as child:
            path = child.communicate()[0].strip()
            self.assertTrue(path)
            self.assertTrue(ended(path))

    def test_anothers_mount_on_the_directory_stays(self):
        with tempfile.TemporaryDirectory() as d:
            first = ucfs.mount(RUN, d)
            subprocess.run(["fusermount3", "-u", d], check=True)
            second = ucfs.mount(RUN, d)
            first.close()
            self.assertIn("latest", os.listdir(d))
            second.close()
            self.assertEqual(os.listdir(d), [])

    def test_an_interrupt_ends_what_is_being_mounted(self):
        class Interrupt(Exception):
            pass

        def interrupt(*_):
            raise Interrupt

        with socket.socket() as server:  # it never answers
            server.bind(("127.0.0.1", 0))
            server.listen()
            before = signal.signal(signal.SIGALRM, interrupt)
            self.addCleanup(signal.signal, signal.SIGALRM, before)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with tempfile.TemporaryDirectory() as d, \
                    self.assertRaises((Interrupt, ucfs.Error)) as caught:
                ucfs.mount(f"http://127.0.0.1:{server.getsockname()[1]}/run/", d, deadline=300)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if not isinstance(caught.exception, Interrupt):
                self.assertIn("libcurl", str(caught.exception))

    def test_errors_are_those_of_the_program(self):
        before = os.listdir(tempfile.gettempdir())
        for source, options, said in [("/nonexistent", {}, "/nonexistent"),
                                      (RUN, {"crc": "a,b"}, "crc=a,b: must be exact or zero")]:
            with self.subTest(said), self.assertRaisesRegex(ucfs.Error, said):
                ucfs.mount(source, **options)
        self.assertEqual(os.listdir(tempfile.gettempdir()), before)


class Program(unittest.TestCase):
    @unittest.skipUnless(os.access(PROGRAM, os.X_OK), "built without FUSE")
    def test_python_m_ucfs_is_it(self):
        said = subprocess.run([sys.executable, "-m", "ucfs", "--version"], check=True,
                              stdout=subprocess.PIPE, universal_newlines=True).stdout
        self.assertRegex(said, "^ucfs [0-9]")


if __name__ == "__main__":
    unittest.main()
