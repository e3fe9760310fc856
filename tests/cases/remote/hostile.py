# SPDX-License-Identifier: Apache-2.0
"""A server of ranges that misbehaves.

hostile.py PORT DIRECTORY MODE-FILE

/MODE/PATH is the file PATH below DIRECTORY, served as MODE says; of mode "switch",
as the mode-file says at the time.  Lists, attributes and small files are served
well, so that a checkpoint is found before it goes wrong.  /MODE?list-type=2 is a page
of a list of S3's bucket MODE; modes of lists are about pages.
"""
import html
import http.server
import os
import sys
import threading
import time
import urllib.parse
import zlib

root, mode_file = sys.argv[2:]
SMALL = 64
calls = {}
lock = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.pop("length", len(body)))
        self.end_headers()
        self.wfile.write(body)

    def find(self):
        """Split a URL into mode and path."""
        _, mode, rest = (urllib.parse.unquote(self.path) + "/").split("/", 2)
        if mode == "switch":
            with open(mode_file) as f:
                mode = f.read().strip()
        return mode, os.path.join(root, rest.strip("/"))

    def stall(self, mode):
        """In mode "dead", all requests; in mode "after_N", all but the first N, which
        DIRECTORY/after_N lists."""
        if mode == "dead":
            time.sleep(600)
        if not mode.startswith("after_"):
            return
        with lock:
            calls[mode] = n = calls.get(mode, 0) + 1
        if n > int(mode[len("after_"):]):
            with open(os.path.join(root, mode), "a") as f:
                f.write(self.path + "\n")
            time.sleep(60)

    def do_HEAD(self):
        mode, path = self.find()
        self.stall(mode)
        if os.path.isdir(path):
            if not self.path.endswith("/"):
                return self.answer(301, Location=self.path + "/")
            return self.answer(200)
        if not os.path.exists(path):
            return self.answer(404)
        with open(path, "rb") as f:
            data = f.read()
        self.send_response(200)
        self.send_header("ETag", etag(data))
        self.send_header("Content-Length", len(data))
        self.end_headers()

    def page(self, mode, query):
        """Return a page of one key, from an endless list."""
        token = query.get("continuation-token", ["0"])[0]
        with lock:
            calls[mode] = n = calls.get(mode, 0) + 1
        if mode == "busy_pages" and n % 2:
            return self.answer(503, Retry_After="0")
        if mode in ("slow_pages", "busy_pages"):
            time.sleep(0.2)
        name = "" if mode == "no_names" else "<Contents><Key>%sf%s</Key><Size>1</Size><ETag>x</ETag></Contents>" % (
            query["prefix"][0], token if mode in ("slow_pages", "busy_pages") else 0)
        following = "again" if mode == "same_token" else int(token) + 1
        self.answer(200, ("<ListBucketResult>%s<IsTruncated>true</IsTruncated>"
                          "<NextContinuationToken>%s</NextContinuationToken></ListBucketResult>"
                          % (name, following)).encode())

    def do_GET(self):
        path, _, query = self.path.partition("?")
        if "list-type=2" in query:
            return self.page(path.strip("/"), urllib.parse.parse_qs(query))
        mode, path = self.find()
        self.stall(mode)
        if os.path.isdir(path):
            names = [n + "/" * os.path.isdir(os.path.join(path, n)) for n in os.listdir(path)]
            return self.answer(200, "".join(
                '<a href="%s">x</a>' % html.escape(urllib.parse.quote(n)) for n in names).encode())
        if not os.path.exists(path):
            return self.answer(404)
        with open(path, "rb") as f:
            data = f.read()
        if "Range" not in self.headers:
            return self.answer(200, data, ETag=etag(data))
        first, last = map(int, self.headers["Range"][len("bytes="):].split("-"))
        self.mode(mode if len(data) > SMALL else "good", data, first, min(last, len(data) - 1))

    def ranged(self, data, first, last, tag=None, total=None, body=None):
        self.answer(206, data[first:last + 1] if body is None else body,
                    ETag=tag or etag(data),
                    Content_Range="bytes %d-%d/%d" % (first, last, total or len(data)))

    def half(self, data, first, last):
        """Send the header of a range and half of its bytes."""
        self.send_response(206)
        self.send_header("ETag", etag(data))
        self.send_header("Content-Range", "bytes %d-%d/%d" % (first, last, len(data)))
        self.send_header("Content-Length", last + 1 - first)
        self.end_headers()
        self.wfile.write(data[first:max(first + 1, last - (last - first) // 8)])
        self.wfile.flush()
        self.close_connection = True

    def odd(self):
        """Is this the first or third request for this file?"""
        with lock:
            calls[self.path] = calls.get(self.path, 0) + 1
            return calls[self.path] in (1, 3)

    def mode(self, mode, data, first, last):
        if mode == "good":
            self.ranged(data, first, last)
        elif mode == "stall":
            time.sleep(60)
        elif mode == "stall_body":
            self.half(data, first, last)
            time.sleep(60)
        elif mode == "close":
            self.close_connection = True
        elif mode == "close_body":  # each answer gets a little further
            self.half(data, first, last)
        elif mode == "close_once":
            if self.odd():
                self.close_connection = True
            else:
                self.ranged(data, first, last)
        elif mode == "short":  # a valid answer that has only the first bytes
            self.ranged(data, first, last - (last - first) // 8)
        elif mode == "busy_once":
            if self.odd():
                self.answer(503, Retry_After="0")
            else:
                self.ranged(data, first, last)
        elif mode == "error_once":
            if self.odd():
                self.answer(500)
            else:
                self.ranged(data, first, last)
        elif mode == "busy":
            self.answer(429)
        elif mode == "elsewhere":
            self.ranged(data, first + 1, last, body=data[first:last])
        elif mode == "another_size":
            self.ranged(data, first, last, total=len(data) + 1)
        elif mode == "too_much":
            self.ranged(data, first, last, body=data[first:last + 1] + b"more")
        elif mode == "whole":
            self.answer(200, data, ETag=etag(data))
        elif mode == "changed":
            self.ranged(other(data), first, last)
        elif mode == "changed_later":
            self.ranged(data if first == 0 else other(data), first, last)
        elif mode == "precondition":
            self.answer(412)
        elif mode == "unnamed":
            self.ranged(other(data), first, last, tag=" ")
        elif mode == "gone":
            self.answer(404)
        elif mode == "redirect":
            self.answer(302, Location="file:///etc/passwd")
        elif mode == "loop":
            self.answer(302, Location=self.path)
        elif mode == "garbage":
            self.wfile.write(b"\0\1\2 nothing that is HTTP\r\n\r\n")
            self.close_connection = True
        else:
            self.answer(400)


def etag(data):
    return '"%08x-%x"' % (zlib.crc32(data), len(data))


def other(data):
    """Another file of the same size."""
    return data.translate(bytes(range(1, 256)) + b"\0")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *args):
        pass


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
