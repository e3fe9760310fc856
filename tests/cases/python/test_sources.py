# SPDX-License-Identifier: Apache-2.0
"""Sources that ucfs.open opens or refuses, and how they are closed."""

import ast
import glob
import itertools
import os
import pickle
import re
import shutil
import stat
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import good
import ucfs
from ucfs import _handles, _library, _options
from ucfs._library import option_texts
from ucfs._source import Source


class Opening(unittest.TestCase):
    def test_tags(self):
        for source, tags in [
                (good.run("z1_fp32_dp2"), ["global_step4"]),
                (good.run("z1_fp32_dp2") + "/global_step4", ["global_step4"]),
                (good.run("hf_trainer"), ["checkpoint-4/global_step4"]),
                ([good.run("z1_fp32_dp2")], ["global_step4"]),
                # Weights without a universal tree, and a tree without weights.
                (good.run("moe_layers_dp4_z0"), ["global_step3"]),
                (good.run("moe_tp2_ep2_dp2_z1"), ["global_step3"]),
        ]:
            with self.subTest(source), ucfs.open(source) as ckpt:
                self.assertEqual(ckpt.tags, tags)
                self.assertEqual(list(ckpt), tags)
                self.assertEqual(ckpt.latest, tags[-1])
                self.assertEqual(ckpt[tags[0]].name, tags[0])
                self.assertEqual(ckpt[-1].name, tags[-1])
                self.assertIn(tags[-1], repr(ckpt))
                with self.assertRaisesRegex(KeyError, "global_step5.*" + tags[0]):
                    ckpt["global_step5"]
                with self.assertRaises(IndexError):
                    ckpt[len(tags)]
        self.assertIn("closed", repr(ckpt))

    def test_a_view_that_a_tag_cannot_have_says_why(self):
        with ucfs.open(good.run("moe_layers_dp4_z0")) as ckpt:
            self.assertRaisesRegex(ucfs.Error, "its groups of experts", lambda: ckpt[-1].parameters)
            self.assertTrue(ckpt[-1].state_dict())

    def test_a_directory_without_tags_has_no_latest(self):
        with tempfile.TemporaryDirectory() as d:
            shutil.copytree(good.run("z1_fp32_dp2"), d + "/run")
            with ucfs.open(d + "/run") as ckpt:
                shutil.rmtree(d + "/run/global_step4")
                os.unlink(d + "/run/latest")
                self.assertRaisesRegex(FileNotFoundError, "no tag", lambda: ckpt.latest)

    def test_links_that_lead_nowhere_are_listed(self):
        links = {"absolute": "/etc/hostname", "itself": "itself", "nothing": "no/thing",
                 "out": "../../../../etc/hostname", "below": "latest/file"}
        good_ones = {"here": ".", "tag": "global_step4", "file": "latest"}
        with tempfile.TemporaryDirectory() as d:
            shutil.copytree(good.run("z1_fp32_dp2"), d + "/run")
            for name, target in {**links, **good_ones}.items():
                os.symlink(target, f"{d}/run/{name}")
            with ucfs.open(d + "/run") as ckpt:
                self.assertLessEqual({"global_step4"}, set(ckpt.tags))
                self.assertTrue(ckpt["global_step4"].parameters["cube"].fp32[:].size)
                found = ckpt._source.list("")
                for name in links:
                    self.assertTrue(stat.S_ISLNK(found[name].mode), name)
                    self.assertRaises(OSError, ckpt._source.open, name)
                self.assertEqual([found["here"], found["tag"], found["file"].size],
                                 [None, None, len("global_step4")])

    def test_refused_sources_are_named(self):
        for name in good.cases(refused=True):
            path = good.tag_path(name)
            with self.subTest(name), self.assertRaisesRegex(ucfs.Error, name):
                with ucfs.open(path) as ckpt:
                    ckpt[ckpt.latest].state_dict()

    def test_mistakes(self):
        run = good.run("z1_fp32_dp2")
        for what, error, said in [
                (lambda: ucfs.open("/nonexistent/run"), FileNotFoundError, "/nonexistent/run"),
                (lambda: ucfs.open(run, crc="some"), ucfs.OptionError, "crc"),
                (lambda: ucfs.open(run, model="a\0b"), ucfs.OptionError, "model.*NUL"),
                (lambda: ucfs.open(run, clever=True), ValueError, "clever: unknown option"),
                (lambda: ucfs.open(run, hf_dtyp="bf16"), ValueError, r"hf_dtyp=bf16: unknown option; did you mean hf_dtype=bf16\?"),
                (lambda: ucfs.open(run, ranks=[0]), ucfs.Error, "ranks"),
                (lambda: ucfs.open([]), ucfs.Error, ""),
                (lambda: ucfs.open(run)["global_step4"].state_dict("int8"), ValueError, "int8"),
        ]:
            with self.subTest(said), self.assertRaisesRegex(error, said):
                what()

    def test_all_options_are_documented_and_typed(self):
        of_mounts = ("allow_other", "uid", "gid", "view")
        commands = ("no_strict", "readers", "jobs", "part", "rtol", "atol")
        known = set(itertools.takewhile(bool, (
            (_library.library().uckpt_option_name(i) or b"").decode().rstrip("=")
            for i in itertools.count())))
        with open(_options.__file__, encoding="utf-8") as f:
            types = {node.target.id for node in ast.walk(ast.parse(f.read()))
                     if isinstance(node, ast.AnnAssign)}
        self.assertEqual(types, known - {*of_mounts, *commands})
        self.assertEqual(types, set(re.findall(r"(\w+)=", _options.OPTIONS)))
        self.assertIn("dcp_style=", ucfs.open.__doc__)
        self.assertIn("dcp_style=", ucfs.mount.__doc__)

    def test_version(self):
        self.assertEqual(ucfs.__version__, ucfs.version())

    def test_options(self):
        for options, texts in [
                ({"crc": "zero", "replace": True}, ["crc=zero", "replace"]),
                ({"ranks": [2, "4_z1"]}, ["ranks=2", "ranks=4_z1"]),
                ({"replace": False, "rules": None}, []),
        ]:
            self.assertEqual(list(option_texts(options)), texts)

    def test_certificates_are_those_of_certifi_where_there_are_no_others(self):
        certifi = mock.Mock(where=lambda: "/some.pem")
        for source, system, given, ca_file in [
                ("https://host/run", (), {}, "/some.pem"),
                ("s3://bucket/run", (), {}, "/some.pem"),
                ("https://host/run", (), {"ca_file": "/own.pem"}, "/own.pem"),
                ("https://host/run", (__file__,), {}, None),
                ("http://host/run", (), {}, None),
                ("/data/run", (), {}, None),
        ]:
            with self.subTest(source), mock.patch.dict(sys.modules, certifi=certifi), \
                    mock.patch.object(_library, "_CERTIFICATES", system):
                options = _library.with_certificates([source], given)
                self.assertEqual(options.get("ca_file"), ca_file)

    def test_errors_are_those_of_python_and_can_be_pickled(self):
        with self.assertRaises(FileNotFoundError) as caught:
            Source(good.run("z1_fp32_dp2"), {}).stat("nothing")
        self.assertIsInstance(caught.exception, ucfs.Error)
        again = pickle.loads(pickle.dumps(caught.exception))
        self.assertIsInstance(again, FileNotFoundError)
        self.assertEqual(str(again), str(caught.exception))


class Closing(unittest.TestCase):
    def test_what_is_closed_raises(self):
        ckpt = ucfs.open(good.run("z1_fp32_dp2"))
        tag = ckpt["global_step4"]
        parameters = tag.parameters
        array = parameters["cube"].fp32
        file = ckpt._source.open("latest")
        cube = parameters["cube"]
        ckpt.close()
        ckpt.close()
        self.assertIn("cube: closed", repr(cube))
        for what in [lambda: ckpt.tags, lambda: tag.parameters, tag.state_dict,
                     lambda: parameters["cube"].fp32,
                     lambda: array[0], file.read]:
            with self.subTest(), self.assertRaises(ValueError):
                what()

    def test_close_waits_for_threads_that_read(self):
        for _ in range(30):
            ckpt = ucfs.open(good.run("z1_fp32_dp2"))
            parameters = ckpt["global_step4"].parameters
            array = parameters["cube"].fp32
            errors = []

            def read():
                try:
                    while True:
                        parameters["cube"].exp_avg[array[:].shape[0] - 1]
                except Exception as e:
                    errors.append(type(e))

            threads = [threading.Thread(target=read) for _ in range(4)]
            for t in threads:
                t.start()
            time.sleep(0.001)
            ckpt.close()
            for t in threads:
                t.join()
            self.assertEqual(errors, [ValueError] * 4)

    def test_a_file_that_a_thread_closes_is_freed_first(self):
        freed, begun, go = [], threading.Event(), threading.Event()
        library = mock.Mock(wraps=_handles.library())  # other objects may be freed in the meantime
        library.close_file = lambda f: (begun.set(), go.wait(), freed.append("file"))
        library.free_source = lambda u: freed.append("source")
        with mock.patch.object(_handles, "library", lambda: library):
            source = _handles.Handle(None, "free_source")
            file = _handles.Handle(None, "close_file", source)
            source.pointer.value, file.pointer.value = 1, 2
            threads = [threading.Thread(target=h.close) for h in (file, source)]
            threads[0].start()
            begun.wait()
            threads[1].start()
            threads[1].join(0.05)
            go.set()
            for t in threads:
                t.join()
        self.assertEqual(freed, ["file", "source"])

    def test_a_forked_process_opens_its_own(self):
        ckpt = ucfs.open(good.run("z1_fp32_dp2"))
        self.addCleanup(ckpt.close)
        array = ckpt[-1].parameters["cube"].fp32
        expected, status = array[...].tobytes(), 3
        closed = ucfs.open(good.run("z1_fp32_dp2"))
        closed.close()
        child = os.fork()
        if not child:
            try:
                with self.assertRaises(ValueError):
                    len(closed.tags)
                status = array[...].tobytes() != expected or len(ckpt.tags) != 1
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(array[...].tobytes(), expected)


class Text(unittest.TestCase):
    @unittest.skipIf(sys.version_info < (3, 8), "ast has no versions")
    def test_is_python_3_8(self):
        for path in glob.glob(os.path.join(os.path.dirname(ucfs.__file__), "*.py")):
            with open(path, encoding="utf-8") as f:
                ast.parse(f.read(), path, feature_version=(3, 8))


if __name__ == "__main__":
    unittest.main()
