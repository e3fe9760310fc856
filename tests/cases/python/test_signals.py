# SPDX-License-Identifier: Apache-2.0
"""An exception from a signal handler, such as Ctrl-C's, is raised from the interrupted call, and
leaves nothing in use."""

import signal
import socket
import sys
import threading
import time
import unittest
from unittest import mock

import good
import ucfs
from ucfs import _arrays, _handles

RUN = good.run("z1_fp32_dp2")
ROUNDS = 100


class Interrupt(BaseException):
    pass


class Signals(unittest.TestCase):
    def setUp(self):
        self.raised = 0
        before = signal.signal(signal.SIGALRM, self.interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        self.dropped = []  # exceptions that Python dropped where it could not raise them
        hook = mock.patch.object(sys, "unraisablehook", self.dropped.append)
        hook.start()
        self.addCleanup(hook.stop)

    def interrupt(self, *_):
        self.raised += 1
        raise Interrupt

    def interrupt_often(self, work):
        """Interrupt it at as many places as there are rounds; return the number of exceptions."""
        out = 0
        for i in range(ROUNDS):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + i % 50 * 0.00002)
                while True:
                    work()
            except Interrupt:
                out += 1
        return out

    def test_none_is_lost_and_nothing_stays_in_use(self):
        ckpt = ucfs.open(RUN)
        tag = ckpt["global_step4"]
        cube = tag.parameters["cube"]
        array = cube.fp32

        def reopen():
            with ucfs.open(RUN) as other:
                self.assertEqual(other.tags, ["global_step4"])

        torch = mock.patch.object(_arrays, "_torch", lambda: None)
        torch.start()
        self.addCleanup(torch.stop)
        for work in [lambda: cube.fp32[:4], lambda: array[::2], tag.state_dict, reopen,
                     lambda: ucfs.info(RUN, quick=True), lambda: ucfs.open(RUN)]:
            self.raised = 0
            self.assertEqual((self.interrupt_often(work), self.raised), (ROUNDS, ROUNDS),
                             self.dropped)
            self.assertFalse(self.dropped)
        ckpt.close()
        self.assertRaises(ValueError, lambda: ckpt.tags)
        for _ in range(30000):  # wait until another thread has closed them
            if not _handles._contexts:
                break
            time.sleep(0.01)
        self.assertFalse(_handles._contexts)

    def test_a_handler_may_close_what_is_read(self):
        for i in range(20):
            ckpt = ucfs.open(RUN)
            array = ckpt["global_step4"].parameters["cube"].fp32
            signal.signal(signal.SIGALRM, lambda *_: ckpt.close())
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + i * 0.00002)
            with self.assertRaises(ValueError):
                while True:
                    array[:]

    def test_a_server_that_does_not_answer_does_not_hold_up(self):
        """The server hangs up earlier than the library, if nothing else ends the call."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            hung_up = []

            def hang_up():
                hung_up.append(True)
                listener.shutdown(socket.SHUT_RDWR)

            timer = threading.Timer(20, hang_up)
            timer.start()
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            try:
                ucfs.open(f"http://127.0.0.1:{listener.getsockname()[1]}/run/", deadline=300)
            except Interrupt:
                self.assertFalse(hung_up)
            except ucfs.Error as e:
                self.assertIn("libcurl", str(e))
                self.skipTest(str(e))
            finally:
                timer.cancel()
                timer.join()


if __name__ == "__main__":
    unittest.main()
