# SPDX-License-Identifier: Apache-2.0
"""ucfs:// for fsspec."""

import os
import pickle
import shutil
import tempfile
import unittest

import good
import ucfs

try:
    import fsspec
    from ucfs._fsspec import UcfsFileSystem
except ImportError as e:
    raise unittest.SkipTest("no fsspec") from e

RUN = good.run("z1_fp32_dp2")
TREE = "global_step4_universal"


class FileSystem(unittest.TestCase):
    def setUp(self):
        self.files = {f"{TREE}/{path}": f for path, f in good.files("z1_fp32_dp2").items()}
        self.fs = fsspec.filesystem("ucfs", source=RUN, ranks=[2])
        self.addCleanup(self.fs.clear_instance_cache)

    def test_finds_the_files_of_a_view(self):
        found = self.fs.find(TREE, detail=True)
        self.assertLessEqual(set(self.files), set(found))
        self.assertGreater(len(self.files), 60)
        for path, (size, digest) in self.files.items():
            self.assertEqual((found[path]["type"], found[path]["size"]), ("file", size))
            self.assertEqual(good.sha256(self.fs.cat_file(path)), digest)

    def test_lists(self):
        for path, names in [
                ("", ["global_step4", "global_step4_dcp", "global_step4_dp2", "global_step4_fp32",
                      "global_step4_hf", TREE, "latest", "latest_universal"]),
                ("global_step4_hf", ["global_step4_hf/model.safetensors"]),
                ("ucfs://global_step4_hf/", ["global_step4_hf/model.safetensors"]),
                ("latest", ["latest"]),
        ]:
            self.assertEqual(sorted(self.fs.ls(path, detail=False)), names)
        self.assertTrue(self.fs.isdir(TREE))
        self.assertTrue(self.fs.isfile("latest"))
        self.assertFalse(self.fs.exists("global_step5"))

    def test_reads_ranges(self):
        path = "latest"
        for start, end, expected in [(None, None, b"global_step4"), (7, None, b"step4"),
                                     (-1, None, b"4"), (0, -5, b"global_"), (3, 3, b""),
                                     (100, 200, b""), (5, 2, b"")]:
            self.assertEqual(self.fs.cat_file(path, start, end), expected)
        ranges = self.fs.cat_ranges([path, path, "no"], [0, 7, 0], [6, 11, 1])
        self.assertEqual(ranges[:2], [b"global", b"step"])
        self.assertIsInstance(ranges[2], FileNotFoundError)
        with self.assertRaises(FileNotFoundError):
            self.fs.cat_ranges(["no"], [0], [1], on_error="raise")

    def test_a_link_that_leads_nowhere_is_listed(self):
        with tempfile.TemporaryDirectory() as d:
            shutil.copytree(RUN, d + "/run")
            os.symlink("loop", d + "/run/loop")
            fs = UcfsFileSystem(d + "/run", skip_instance_cache=True)
            self.addCleanup(fs.close)
            self.assertEqual(fs.find("", detail=True)["loop"]["type"], "link")
            self.assertRaises(OSError, fs.open, "loop")

    def test_opens_files(self):
        with self.fs.open("latest") as f:
            self.assertEqual(f.size, 12)
            self.assertEqual(f.seek(-5, os.SEEK_END), 7)
            self.assertEqual((f.read(4), f.tell(), f.read(), f.read(1)), (b"step", 11, b"4", b""))
        with self.fs.open("latest", "r") as f:
            self.assertEqual(f.read(), "global_step4")
        self.assertRaises(OSError, self.fs.open, "latest", "wb")
        self.assertRaises(IsADirectoryError, self.fs.open, TREE)

    def test_copies_a_tree(self):
        with tempfile.TemporaryDirectory() as d:
            self.fs.get(TREE, d + "/out", recursive=True)
            for path, (_, digest) in self.files.items():
                with open(f"{d}/out{path[len(TREE):]}", "rb") as f:
                    self.assertEqual(good.sha256(f.read()), digest)

    def test_urls_begin_with_their_source(self):
        for path in ["/global_step4_hf/model.safetensors", "/latest",
                     "/global_step4/mp_rank_00_model_states.pt",
                     "/global_step4/zero_pp_rank_0_mp_rank_00_optim_states.pt",
                     "/global_step4/zero/cube/fp32.pt"]:
            with self.subTest(path), fsspec.open(f"ucfs://{RUN}{path}") as f:
                self.assertTrue(f.read())
        fs = fsspec.filesystem("ucfs")
        self.assertIn(f"{RUN}/latest", fs.ls(RUN, detail=False))
        with self.assertRaises(FileNotFoundError):
            fs.info(RUN + "/nothing")

    def test_can_be_pickled(self):
        again = pickle.loads(pickle.dumps(self.fs))
        self.assertEqual(again.cat_file("latest"), b"global_step4")

    def test_closed(self):
        fs = UcfsFileSystem(RUN, skip_instance_cache=True)
        file = fs.open("latest")
        fs.close()
        for what in [lambda: fs.ls(""), lambda: fs.cat_file("latest"), file.read]:
            self.assertRaises(ValueError, what)

    def test_mistakes(self):
        self.assertRaises(ucfs.Error, fsspec.filesystem, "ucfs", source=RUN, clever=True)
        self.assertRaises(ucfs.Error, fsspec.filesystem, "ucfs", source="/nonexistent")


if __name__ == "__main__":
    unittest.main()
