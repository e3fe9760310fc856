# SPDX-License-Identifier: Apache-2.0
"""ucckpt's commands as functions."""

import os
import shutil
import tempfile
import threading
import unittest

import good
import ucfs

RUN = good.run("z1_fp32_dp2")


class Reports(unittest.TestCase):
    def test_info(self):
        for quick in False, True:
            report = ucfs.info(RUN, quick=quick)
            self.assertEqual((report["stage"], report["dp_degree"], report["quick"]),
                             (1, 2, quick))

    def test_check(self):
        self.assertEqual(ucfs.check(RUN, data=True)["problems"], [])
        with tempfile.TemporaryDirectory() as d:
            shutil.copytree(RUN, d + "/run")
            shard = next(f for f in os.listdir(d + "/run/global_step4") if "optim" in f)
            os.truncate(f"{d}/run/global_step4/{shard}", 100)
            self.assertIn(shard, str(ucfs.check(d + "/run")["problems"]))

    def test_diff(self):
        self.assertTrue(ucfs.diff(RUN, RUN + "/global_step4")["equal"])
        self.assertFalse(ucfs.diff(RUN, good.run("z1_fp32_dp3"))["equal"])
        self.assertTrue(ucfs.diff(RUN, good.run("z1_fp32_dp3"), rtol=1e-9, atol=1e9)["equal"])

    def test_mistakes(self):
        for what in [lambda: ucfs.info("/nonexistent"), lambda: ucfs.check("/nonexistent"),
                     lambda: ucfs.diff(RUN, "/nonexistent")]:
            self.assertRaisesRegex(ucfs.Error, "/nonexistent", what)


class Materialize(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dest = directory.name + "/out"

    def test_writes_what_the_converter_does(self):
        seen = []
        done = ucfs.materialize(RUN, "universal", self.dest,
                                progress=lambda *step: seen.append(step))
        files = good.files("z1_fp32_dp2")
        for path, (_, digest) in files.items():
            with open(os.path.join(self.dest, path), "rb") as f:
                self.assertEqual(good.sha256(f.read()), digest)
        self.assertGreaterEqual(done["files"], len(files))
        self.assertEqual(seen, sorted(seen))
        self.assertEqual(seen[-1][0], seen[-1][1])

    def test_views(self):
        for view, file in [("hf", "model.safetensors"), ("fp32", "pytorch_model.bin"),
                           ("dp4", "zero_pp_rank_3_mp_rank_00_optim_states.pt"),
                           ("dp1_z3", "zero_pp_rank_0_mp_rank_00_model_states.pt")]:
            with self.subTest(view):
                ucfs.materialize(RUN, view, self.dest)
                self.assertIn(file, os.listdir(self.dest))
                shutil.rmtree(self.dest)

    def test_a_callback_stops_it(self):
        def fail(done, total):
            raise KeyError(threading.current_thread())

        for callback, error in [(lambda *step: True, InterruptedError), (fail, KeyError)]:
            self.assertRaises(error, ucfs.materialize, RUN, "hf", self.dest, callback)
            self.assertEqual(os.listdir(os.path.dirname(self.dest)), [])

    def test_what_is_left_of_it_is_said(self):
        with self.assertLogs("ucfs", "WARNING") as said:
            self.assertRaises(InterruptedError, ucfs.materialize, RUN, "universal", self.dest,
                              lambda done, total: done > total // 2, jobs=1)
        self.assertRegex(said.output[-1], self.dest + ": complete files are kept beside it "
                         r"\(\d+\), and the same call goes on with them")
        ucfs.materialize(RUN, "universal", self.dest)
        self.assertEqual(sorted(os.listdir(os.path.dirname(self.dest))),
                         sorted(["latest_universal", os.path.basename(self.dest)]))

    def test_mistakes(self):
        for view in ["dp", "dp2_z4", "zero", "dp0"]:
            with self.subTest(view):
                self.assertRaises(ucfs.Error, ucfs.materialize, RUN, view, self.dest)
        os.makedirs(self.dest + "/full")
        self.assertRaises(FileExistsError, ucfs.materialize, RUN, "hf", self.dest)


if __name__ == "__main__":
    unittest.main()
