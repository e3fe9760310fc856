# SPDX-License-Identifier: Apache-2.0
"""Worker processes read: forked ones, and ones that receive objects."""

import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import good
import ucfs

RUN = good.run("z1_fp32_dp2")
SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../remote/hostile.py")


def values(tag):
    return {name: p.fp32[...].tobytes() for name, p in tag.parameters.items()}


class Forked(unittest.TestCase):
    def test_readers_of_a_server_do_not_meet(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        server = subprocess.Popen([sys.executable, SERVER, str(port), os.path.dirname(RUN), ""])
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        url = f"http://127.0.0.1:{port}/good/{os.path.basename(RUN)}"
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        try:
            far = ucfs.open(url)
        except ucfs.Error as e:
            self.assertIn("libcurl", str(e))
            self.skipTest(str(e))
        with far, ucfs.open(RUN) as near:
            expected = values(near["global_step4"])
            self.assertEqual(values(far["global_step4"]), expected)
            children = []
            for _ in range(4):
                child = os.fork()
                if not child:
                    try:
                        os._exit(values(far["global_step4"]) != expected)
                    finally:
                        os._exit(2)
                children.append(child)
            self.assertEqual(values(far["global_step4"]), expected)
            self.assertEqual([os.waitpid(child, 0)[1] for child in children], [0] * 4)


class Sent(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.run_directory = directory.name + "/run"
        shutil.copytree(RUN, self.run_directory)

    def test_objects_are_opened_again(self):
        with ucfs.open(self.run_directory) as ckpt:
            tag = ckpt["global_step4"]
            cube = tag.parameters["cube"]
            file = ckpt._source.open("latest")
            file.seek(7)
            expected = values(tag)
            sent = pickle.dumps([ckpt, tag, tag.parameters, cube, cube.fp32, file])
        ckpt, tag, parameters, cube, array, file = pickle.loads(sent)
        with ckpt:
            self.assertEqual(ckpt.tags, ["global_step4"])
        self.assertEqual(values(tag), expected)
        for a in parameters["cube"].fp32, cube.fp32, array:
            self.assertEqual(a[...].tobytes(), expected["cube"])
        self.assertEqual(file.read(), b"step4")

    def test_by_a_relative_path_to_a_process_elsewhere(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(os.path.dirname(self.run_directory))
        with ucfs.open("run") as ckpt:
            array = ckpt["global_step4"].parameters["cube"].fp32
            sent, total = pickle.dumps(array), float(array[...].sum())
        said = subprocess.run(
            [sys.executable, "-c", "import pickle, sys\n"
             "print(float(pickle.load(sys.stdin.buffer)[...].sum()))"],
            input=sent, stdout=subprocess.PIPE, check=True, cwd="/").stdout
        self.assertEqual(float(said), total)

    def test_another_tensor_in_its_place_is_an_error(self):
        with ucfs.open(self.run_directory) as ckpt:
            array = ckpt["global_step4"].parameters["cube"].fp32
            reopen, (*same, shape) = array.__reduce__()
            self.assertEqual(reopen(*same, shape).shape, shape)
            self.assertRaisesRegex(ucfs.Error, "any more", reopen, *same, (*shape, 1))


if __name__ == "__main__":
    unittest.main()
