# SPDX-License-Identifier: Apache-2.0
"""ucckpt's commands as functions."""

import os
import shutil
import tempfile
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

    def test_mistakes(self):
        for what in [lambda: ucfs.info("/nonexistent"), lambda: ucfs.check("/nonexistent"),
                     lambda: ucfs.diff(RUN, "/nonexistent")]:
            self.assertRaisesRegex(ucfs.Error, "/nonexistent", what)


if __name__ == "__main__":
    unittest.main()
