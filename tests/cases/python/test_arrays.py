# SPDX-License-Identifier: Apache-2.0
"""Parameters as arrays, and weights, of all real checkpoints, compared with their digests."""

import shutil
import tempfile
import unittest
from unittest import mock

import numpy as np

import good
import ucfs
from ucfs import _arrays
from ucfs._source import File


def raw(array):
    return np.ascontiguousarray(array).tobytes()


class Values(unittest.TestCase):
    def test_parameters_are_those_of_the_training_processes(self):
        compared = 0
        for name in good.cases():
            with self.subTest(name), ucfs.open(good.tag_path(name), **good.options(name)) as ckpt:
                parameters = ckpt[ckpt.latest].parameters
                for what, *rest in good.statements(name):
                    if what == "shape":
                        self.assertEqual(parameters[rest[0]].fp32.shape, good.shape(rest[1]))
                    elif what == "truth":
                        array = parameters[rest[0]][rest[1]]
                        if array.type != "bfloat16":
                            found = np.asarray(array, np.float32)
                            self.assertEqual(good.sha256(raw(found)), rest[2], array)
                            compared += 1
        self.assertGreater(compared, 5000)

    def test_weights_are_those_of_zero_to_fp32(self):
        """The lines of torch.load's result, in which trained parameters have requires_grad.
        The universal tree's digests show which were trained; types that numpy lacks need torch."""
        compared = 0
        for name in good.cases():
            found = [s[3] for s in good.statements(name, "weights")
                     if s[:2] == ["tensors", "fp32"]]
            shapes = [s[1] for s in good.statements(name) if s[0] == "shape"]
            if not found or not shapes:
                continue
            with self.subTest(name), ucfs.open(good.tag_path(name), **good.options(name)) as ckpt, \
                    mock.patch.object(_arrays, "_torch", lambda: None):
                try:
                    weights = ckpt[ckpt.latest].state_dict()
                except ucfs.Error as e:
                    self.assertIn("numpy has no", str(e))
                    continue
                trained = [id(weights[n]) for n in shapes]
                lines = "".join(
                    "%s %s %s %d %s\n" % (n, a.dtype, "x".join(map(str, a.shape)) or "-",
                                          id(a) in trained, good.sha256(raw(a)))
                    for n, a in weights.items())
                self.assertEqual(good.sha256(lines.encode()), found[0])
                compared += 1
        self.assertGreater(compared, 50)

    def test_of_a_lora_run_all_weights_are_rounded(self):
        with ucfs.open(good.run("lora_named_z1_dp2")) as ckpt, \
                mock.patch.object(_arrays, "_torch", lambda: None):
            whole, half = (ckpt["global_step4"].state_dict(t) for t in ("fp32", "fp16"))
            self.assertEqual(list(whole), list(half))
            self.assertEqual(len(whole), 20)
            for name, array in whole.items():
                self.assertEqual(raw(array.astype(np.float16)), raw(half[name]), name)

    def test_tied_weights_share_memory(self):
        with ucfs.open(good.run("z3_tied_frozen_buffers_dp2")) as ckpt, \
                mock.patch.object(_arrays, "_torch", lambda: None):
            for dtype in "fp32", "fp16":
                weights = ckpt["global_step4"].state_dict(dtype)
                self.assertIs(weights["embed.weight"], weights["head.weight"])
                self.assertEqual(weights["count"].dtype, np.int64)
            with self.assertRaisesRegex(ucfs.Error, "bfloat16"):
                ckpt["global_step4"].state_dict("bf16")


class Parameters(unittest.TestCase):
    def test_names_may_be_paths(self):
        with tempfile.TemporaryDirectory() as d:
            shutil.copytree(good.run("z1_fp32_dp2"), d + "/run")
            tree = d + "/run/global_step4_universal"
            ucfs.materialize(d + "/run", "universal", tree)
            shutil.copytree(tree + "/zero/cube", tree + "/zero/a/b")
            shutil.copytree(tree + "/zero/cube", tree + "/zero/cube/c")
            with ucfs.open(d + "/run") as ckpt:
                parameters = ckpt["global_step4"].parameters
                self.assertLessEqual({"a/b", "cube", "cube/c", "head.weight"}, set(parameters))
                self.assertNotIn("a", parameters)
                self.assertEqual(raw(parameters["a/b"].fp32), raw(parameters["cube"].fp32))

    def test_is_a_mapping_with_attributes(self):
        with ucfs.open(good.run("z1_fp32_dp2")) as ckpt:
            parameters = ckpt["global_step4"].parameters
            cube = parameters["cube"]
            self.assertEqual(sorted(cube), ["exp_avg", "exp_avg_sq", "fp32", "step"])
            self.assertEqual(float(cube.step), 4)
            self.assertNotIn("optimizer_state.pt", parameters)
            for what, error in [(lambda: parameters["square"], KeyError),
                                (lambda: cube["momentum"], KeyError),
                                (lambda: cube.momentum, AttributeError)]:
                self.assertRaises(error, what)
            with mock.patch.object(_arrays.difflib, "get_close_matches") as near:
                self.assertNotIn("square", parameters)
                self.assertIsNone(cube.get("momentum"))
            near.assert_not_called()
            with self.assertRaisesRegex(KeyError, "cubes.*'cube'"):
                parameters["cubes"]


S = slice
KEYS = [
    0, -1, S(None), S(2, 5), S(-4, None), S(5, 2), S(100, 200), S(None, None, 2),
    S(1, None, 3), S(None, None, -1), S(8, 2, -3), S(0, 1), ..., (), None,
    (2, 3), (S(1, 4), S(2, 3)), (S(None, None, 4), 1), (S(6, None, -2), S(None, None, 2)),
    (..., 0), (None, 1), (3, ...), [1, 3, 2], np.arange(13) % 3 == 0, np.int64(2),
]


class Indexing(unittest.TestCase):
    def setUp(self):
        ckpt = ucfs.open(good.run("z1_fp32_dp2"))
        self.addCleanup(ckpt.close)
        self.parameters = ckpt["global_step4"].parameters
        self.array = self.parameters["embed.weight"].fp32
        self.whole = np.asarray(self.array)

    def test_is_that_of_numpy(self):
        self.assertEqual(self.whole.shape, (13, 6))
        for block in 1, 60, 1 << 20:
            for key in KEYS:
                with self.subTest(key=key), mock.patch.object(_arrays, "_BLOCK_BYTES", block):
                    found = self.array[key]
                    self.assertEqual(found.shape, self.whole[key].shape)
                    np.testing.assert_array_equal(found, self.whole[key])

    def test_wrong_keys(self):
        for key in 13, -14, (0, 6), "a", (0, 0, 0):
            with self.subTest(key=key), self.assertRaises(IndexError):
                self.array[key]
        scalar = self.parameters["cube"].step
        self.assertRaises(TypeError, len, scalar)
        self.assertRaises(IndexError, lambda: scalar[0])

    def test_reads_only_the_rows_of_the_index(self):
        row = 6 * 4
        for key, expected in [(3, [row]), (S(2, 5), [3 * row]), ((S(2, 5), 0), [3 * row]),
                              (S(None, None, 5), [row, row, row]), (S(4, 4), []),
                              (S(9, None, -9), [row, row])]:
            sizes = []
            read_at = File.read_at

            def note(file, address, size, offset, memory):
                sizes.append(size)
                read_at(file, address, size, offset, memory)

            with self.subTest(key=key), mock.patch.object(File, "read_at", note), \
                    mock.patch.object(_arrays, "_BLOCK_BYTES", 1):
                self.array[key]
                self.assertEqual(sizes, expected)

    def test_is_an_array_to_numpy(self):
        self.assertEqual((len(self.array), self.array.ndim, self.array.size, self.array.nbytes),
                         (13, 2, 78, 312))
        self.assertEqual(self.array.dtype, np.float32)
        self.assertEqual(np.asarray(self.array, dtype=np.float64).dtype, np.float64)
        self.assertEqual(np.max(self.array), self.whole.max())
        self.assertEqual([r.tolist() for r in self.array], self.whole.tolist())


if __name__ == "__main__":
    unittest.main()
